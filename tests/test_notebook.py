"""hacpo for notebooks, and the example of it."""

from pathlib import Path
from typing import Any

import pytest

import hacpo
from flows.records.gridfile import GridCell, GridRecord, save_grid
from hacpo_core.errors import ConfigError

pytestmark = pytest.mark.slow
NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.py"


def test_example_trains_and_reads_runs_results_and_responses(
    small_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/models").symlink_to(small_models / "models")
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert text.count("# %%") > 5
    small = text.replace('"tiny", "hacpo", ', f'"{small_models / "small.yaml"}", "hacpo", ')
    cells: dict[str, Any] = {}
    exec(compile(small, str(NOTEBOOK), "exec"), cells)
    run, table, responses = cells["run"], cells["table"], cells["responses"]
    assert list(table["agent"]) == ["qwen", "llama"]
    assert set(responses["agent"]) == {"qwen", "llama"} and set(cells["columns"]) >= {"ratio_for_qwen"}
    found = hacpo.runs()
    assert list(found["run"]) == [run, run] and set(found["state"]) == {"done"}
    assert list(found["test"]) == list(table["test_after"])
    assert hacpo.results(run).equals(table), "a complete run is read"

    grid = [GridCell("a pair", "hacpo", "", 0, agent, run) for agent in ("llama", "qwen")]
    save_grid(Path("runs"), GridRecord("mine", "Mine", "plain", cells=grid))
    of_grid = hacpo.results("mine")
    assert list(of_grid["agent"]) == ["llama", "qwen"] and set(of_grid["pair"]) == {"a pair"}
    with pytest.raises(ConfigError, match="expected the id of one experiment"):
        hacpo.results("nothing")
