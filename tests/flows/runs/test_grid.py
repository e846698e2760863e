"""A grid as a user types it: it runs side by side, survives kills, reuses what is done, and says what failed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.planner import GridPlan, plan_grid
from flows.planning.plans import Plan, save_plan
from flows.records.watcher import QuietWatcher
from flows.runs.experiment import run_experiment
from flows.runs.results import read_final
from flows.service.schedule import Schedule
from flows.service.server import ensure_server, stop_server
from hacpo_core.phases.runner import DirectRunner
from tests.experiments_outcome import outcome

pytestmark = pytest.mark.slow


@pytest.fixture
def runs_dir(small_models: Path, tmp_path: Path, migrated: Callable[[Path], None]) -> Iterator[Path]:
    """A runs folder with warm models, and a grid file beside them; its server is stopped at the end."""
    (tmp_path / "models").symlink_to(small_models / "models")
    entry = f"{{pairs: [{small_models / 'small.yaml'}], methods: [naive, hacpo]}}"
    (tmp_path / "grid.yaml").write_text(f"title: small\nentries: [{entry}]\nreport: {{table: plain}}", encoding="utf-8")
    migrated(tmp_path)
    yield tmp_path
    stop_server(tmp_path)


def command(runs_dir: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "grid", str(runs_dir / "grid.yaml"), "--runs-dir", str(runs_dir), *words]


def start(runs_dir: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"HACPO_TEST_MARK": str(runs_dir)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command(runs_dir, *words), stdout=pipe, stderr=pipe, text=True, env=environment)


def finish(process: subprocess.Popen[str], *, code: int = 0) -> str:
    printed, errors = process.communicate(timeout=400)
    assert process.returncode == code, errors[-3000:]
    return printed + (errors if code else "")


def marked(runs_dir: Path) -> list[psutil.Process]:
    """The processes that a command with this mark started and that still run, but for the server and its reconciler."""
    found = []
    for process in psutil.process_iter():
        try:
            is_service = {"server", "flows.service.reconciler"} & set(process.cmdline())
            if process.environ().get("HACPO_TEST_MARK") == str(runs_dir) and not is_service:
                found.append(process)
        except psutil.Error:
            continue
    return found


def planned(runs_dir: Path) -> GridPlan:
    return plan_grid(str(runs_dir / "grid.yaml"), runs_dir=runs_dir)


def wait_until(is_true: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not is_true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def trainings_under_way(grid: GridPlan) -> list[Plan]:
    return [p for p in grid.plans.values() if (p.root / "steps" / "000001").is_dir() and read_final(p) is None]


def test_grid_killed_in_the_middle_finishes_on_the_next_call_without_repeating_a_run(
    runs_dir: Path, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    grid = planned(runs_dir)
    assert len(grid.plans) == 2
    first = start(runs_dir, "--workers", "1")
    wait_until(lambda: any(map(read_final, grid.plans.values())) and trainings_under_way(grid), first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    deadline = time.monotonic() + 90
    while marked(runs_dir) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not marked(runs_dir), "a killed grid leaves nothing running"
    (done,) = planned(runs_dir).experiments("done")
    written_at = (done.root / "result.json").stat().st_mtime_ns

    printed = finish(start(runs_dir))
    assert f"{done.id} is complete and is reused." in printed
    assert (done.root / "result.json").stat().st_mtime_ns == written_at
    after = planned(runs_dir)
    assert {cell.status for cell in after.cells} == {"done"}
    alone = small_plan("hacpo", runs_dir=tmp_path / "alone")
    run_experiment(alone, DirectRunner(), QuietWatcher())
    (shared,) = [p for p in after.plans.values() if p.config.method.name == "hacpo"]
    assert outcome(shared) == outcome(alone), "side by side, killed and resumed: the same bits as alone"

    again = finish(start(runs_dir))
    assert again.count("is complete and is reused.") == 2
    rows = [line.split()[:4] for line in again.splitlines() if line.split()[:1] == ["small"]]
    assert [(row[1], row[3]) for row in rows] == [
        ("naive", "qwen"),
        ("naive", "llama"),
        ("hacpo", "qwen"),
        ("hacpo", "llama"),
    ]
    page = (runs_dir / "reports" / "grid" / "report.html").read_text(encoding="utf-8")
    assert "<figure" in page
    assert not re.search(r'<[^>]* src="(?!data:)', page), "the page is self-contained"
    assert not marked(runs_dir)


def test_what_fails_does_not_stop_the_others_and_is_tried_again_when_asked(runs_dir: Path) -> None:
    grid = planned(runs_dir)
    (broken,) = [p for p in grid.plans.values() if p.config.method.name == "hacpo"]
    save_plan(broken)
    (broken.root / "steps").write_text("in the way", encoding="utf-8")
    printed = finish(start(runs_dir), code=3)
    assert "1 of 2 experiments done, 1 failed; first to end: " in printed
    assert f"{broken.id}: FAILED" in printed
    assert {(cell.method, cell.status) for cell in planned(runs_dir).cells} == {("naive", "done"), ("hacpo", "failed")}
    shown = json.loads(finish(start(runs_dir, "--dry-run", "--json")))
    assert shown["experiments"] == {"done": 1, "running": 0, "queued": 0, "failed": 1, "missing": 0, "unavailable": 0}
    (broken.root / "steps").unlink()
    assert "--run failed retries" in finish(start(runs_dir), code=3)
    assert len(planned(runs_dir).experiments("failed")) == 1, "a failed one is not tried again unasked"
    result = json.loads(finish(start(runs_dir, "--run", "failed", "--json")))  # and nothing else on standard output
    assert result["failed"] == {}
    assert len(result["table"]) == 4


@pytest.mark.soak
def test_run_that_is_killed_is_put_back_and_the_grid_goes_on(runs_dir: Path) -> None:
    grid = planned(runs_dir)
    process = start(runs_dir, "--workers", "1")
    wait_until(lambda: trainings_under_way(grid), process)
    (run,) = [p for p in marked(runs_dir) if "prefect.engine" in " ".join(p.cmdline())]
    run.kill()
    finish(process)
    assert {cell.status for cell in planned(runs_dir).cells} == {"done"}


def test_grid_that_is_interrupted_takes_its_runs_off_the_queue(runs_dir: Path) -> None:
    grid = planned(runs_dir)
    process = start(runs_dir, "--workers", "1")
    wait_until(lambda: trainings_under_way(grid), process)
    process.send_signal(signal.SIGINT)
    assert "resumes from the last committed phase" in finish(process, code=130)
    assert not marked(runs_dir)
    states = {run.state for run in Schedule(ensure_server(runs_dir), runs_dir).runs().values()}
    assert states <= {"Cancelled", "Completed"}
    finish(start(runs_dir))
    assert {cell.status for cell in planned(runs_dir).cells} == {"done"}


def test_grid_that_is_only_submitted_is_trained_by_the_worker_that_comes_later(runs_dir: Path) -> None:
    assert "2 experiments are in the queue" in finish(start(runs_dir, "--submit", "--priority", "high"))
    assert not planned(runs_dir).experiments("done", "running")
    schedule = Schedule(ensure_server(runs_dir), runs_dir)
    assert {(run.state, run.priority) for run in schedule.runs().values()} == {("Scheduled", "high")}
    finish(start(runs_dir, "--submit"))
    assert len(schedule.all_flow_runs()) == 2, "nothing is in the queue twice"
    finish(start(runs_dir))
    assert {cell.status for cell in planned(runs_dir).cells} == {"done"}
    deadline = time.monotonic() + 90  # ended before it reported, a run is completed by the reconciler
    while {run.state for run in schedule.runs().values()} != {"Completed"}:
        assert time.monotonic() < deadline, schedule.runs()
        time.sleep(1.0)


def test_grid_whose_worker_ends_says_why_and_leaves_nothing_in_the_queue(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    said = finish(start(runs_dir), code=3)
    assert "hacpo: the worker ended (exit code 2; " in said
    assert "MLFLOW_TRACKING_URI: contains a password" in said
    assert {run.state for run in Schedule(ensure_server(runs_dir), runs_dir).runs().values()} == {"Cancelled"}
    assert not marked(runs_dir)
    assert [path for path in runs_dir.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()] == []
