"""The script for a GPU machine, rehearsed on the CPU without Prefect and MLflow."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_trial.sh"


def trial(folder: Path, **environment: str) -> list[str]:
    """Lines of the results; Prefect and MLflow cannot be imported."""
    for name in ("prefect", "mlflow"):
        (folder / f"{name}.py").write_text("raise ImportError('not on this machine')\n", encoding="utf-8")
    results = folder / "results.txt"
    results.write_text("an earlier trial\n", encoding="utf-8")
    variables = {"PYTHON": sys.executable, "HARDWARE": "cpu", "PYTHONPATH": str(folder), "FACTOR": "4"}
    subprocess.run(["bash", SCRIPT, results], env=os.environ | variables | environment, check=True, timeout=2400)
    lines = results.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "an earlier trial"
    assert re.match(r"# 20\S+Z, commit \w+, ", lines[1])
    return lines[2:]


def values(lines: list[str], part: str) -> list[dict[str, object]]:
    """What a part printed; it must have ended well."""
    first = next(n for n, line in enumerate(lines) if line.startswith(f"=== {part}, cpu, at most "))
    last = next(n for n, line in enumerate(lines) if line.startswith(f"--- {part}: status 0 after "))
    return [json.loads(line) for line in lines[first + 1 : last]]


@pytest.mark.slow
@pytest.mark.system
def test_parts_run_in_order_and_append_their_results(tmp_path: Path) -> None:
    lines = trial(tmp_path, PARTS="doctor passes new_rows replay", WORDS="train.num_steps=3")
    names = [line.split(",")[0] for line in lines if line.startswith("=== ") and ", cpu, " in line]
    assert names == ["=== passes", "=== new_rows", "=== doctor", "=== replay"]
    *_, gpu, step = values(lines, "doctor")
    assert gpu["detail"] == "none; --hardware cpu works"
    assert str(step["step"]).startswith("samples and trains on cpu")
    ways = values(lines, "passes")
    assert [each["way"] for each in ways[:4]] == ["forward", "forward and backward", "update", "update, padded rows"]
    assert len(ways) == 7
    (new,) = values(lines, "new_rows")
    assert new["response_tokens"] != ways[0]["response_tokens"], "rows of other lengths"
    *_, first, second, written = values(lines, "replay")
    for found in (first, second):
        assert (found["replays"], found["distances"]) == (["exact"] * 3, [0.0] * 3)
    assert float(str(written["written_mib"])) > 0


def test_time_limits_of_the_parts_add_up_to_ten_minutes_and_none_outlives_the_whole(tmp_path: Path) -> None:
    limits = [int(limit) for limit in re.findall(r"^ +part \w+ (\d+) ", SCRIPT.read_text(encoding="utf-8"), re.M)]
    assert len(limits) == 10
    assert sum(limits) <= 600
    lines = trial(tmp_path, PARTS="doctor pair", TOTAL_S="0")
    assert lines[:2] == ["=== doctor: no time left", "=== pair: no time left"]
