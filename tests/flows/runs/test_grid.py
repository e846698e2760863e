"""A grid as a user types it: it runs side by side, survives kills, reuses what is done, and says what failed."""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.grids.planner import GridPlan, plan_grid
from flows.planning.plans import Plan, save_plan
from flows.runs.results import read_final
from flows.service.experiment_state import ScheduledRun
from flows.service.prefect_server import ensure_server
from flows.service.processes import home_of
from flows.service.schedule import Schedule
from tests.experiments_outcome import outcome
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


_seeds = itertools.count()


@pytest.fixture
def grid_file(small_models: Path, site_dir: Path) -> Path:
    """A grid of two experiments that no other test has."""
    seed = next(_seeds)
    entry = f"{{pairs: [{small_models / 'small.yaml'}], methods: [naive, hacpo]}}"
    path = site_dir / f"grid{seed}.yaml"
    path.write_text(f"title: small\nseeds: [{seed}]\nentries: [{entry}]\nreport: {{table: plain}}", encoding="utf-8")
    return path


def start(grid_file: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flows.cli", "grid", str(grid_file), "--runs-dir", str(grid_file.parent), *words]
    environment = os.environ | {"HACPO_TEST_MARK": str(grid_file)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def finish(process: subprocess.Popen[str], *, code: int = 0) -> str:
    printed, errors = process.communicate(timeout=400)
    assert process.returncode == code, errors[-3000:]
    return printed + (errors if code else "")


def marked(grid_file: Path) -> list[psutil.Process]:
    """The processes that a command with this mark started and that still run, but for the folder's services."""
    services = {"server", "sync", "git"}  # the sender to MLflow asks git
    found = []
    for process in psutil.process_iter():
        try:
            is_service = services & set(process.cmdline())
            if process.environ().get("HACPO_TEST_MARK") == str(grid_file) and not is_service:
                found.append(process)
        except psutil.Error:
            continue
    return found


def planned(grid_file: Path) -> GridPlan:
    return plan_grid(str(grid_file), runs_dir=grid_file.parent)


def flow_runs(grid_file: Path) -> dict[str, ScheduledRun]:
    """The grid's flow runs, by experiment."""
    runs = Schedule(ensure_server(grid_file.parent), grid_file.parent).runs()
    return {experiment: runs[experiment] for experiment in planned(grid_file).plans if experiment in runs}


def check_running(process: subprocess.Popen[str]) -> None:
    assert process.poll() is None, process.communicate()


def trainings_under_way(grid: GridPlan) -> list[Plan]:
    return [p for p in grid.plans.values() if (p.root / "steps" / "000001").is_dir() and read_final(p.root) is None]


@pytest.mark.system
def test_grid_with_a_failure_and_a_kill_finishes_without_repeating_a_run(
    grid_file: Path, site_dir: Path, small_plan: Callable[..., Plan], undisturbed: Callable[[Plan], Any], tmp_path: Path
) -> None:
    """What fails does not stop the others and is tried again when asked; what is killed goes on with the next call."""
    grid = planned(grid_file)
    (broken,) = [p for p in grid.plans.values() if p.config.method.name == "hacpo"]
    save_plan(broken)
    (broken.root / "steps").write_text("in the way", encoding="utf-8")
    printed = finish(start(grid_file), code=3)
    assert "1 of 2 experiments done, 1 failed; --run all trains them" in printed
    assert printed.count("StoreError") == 1, "said once"
    assert f"{broken.id}: FAILED" in printed
    assert "Traceback" not in (home_of(site_dir) / "worker.log").read_text(encoding="utf-8")
    grid = planned(grid_file)
    assert {(c.method, grid.states[c.experiment].state) for c in grid.cells} == {("naive", "done"), ("hacpo", "failed")}
    assert "2 experiments: 1 done, 1 failed" in finish(start(grid_file, "--dry-run"))
    (done,) = planned(grid_file).experiments("done")
    written_at = (done.root / "result.json").stat().st_mtime_ns
    (broken.root / "steps").unlink()
    assert "--run all trains" in finish(start(grid_file), code=3)
    assert len(planned(grid_file).experiments("failed")) == 1, "a failed one is not tried again unasked"

    killed = start(grid_file, "--run", "failed", "--workers", "1")
    wait_until(lambda: trainings_under_way(grid), limit_s=300, meanwhile=lambda: check_running(killed))
    killed.kill()
    killed.wait()
    wait_until(lambda: not marked(grid_file), "the end of all that a killed grid started", limit_s=90)

    printed = finish(start(grid_file))
    assert f"{done.id} is complete and is reused." in printed
    assert (done.root / "result.json").stat().st_mtime_ns == written_at
    assert {state.state for state in planned(grid_file).states.values()} == {"done"}
    alone = small_plan("hacpo", f"seed={broken.config.seed}", runs_dir=tmp_path / "alone")
    assert outcome(broken) == undisturbed(alone), "side by side, killed and resumed: the same bits as alone"
    (header,) = [line for line in printed.splitlines() if line.split()[:2] == ["method", "agent"]]
    assert header.split() == ["method", "agent", "dev_before", "dev_after", "test_before", "test_after", "tokens"]
    agents = itertools.product(("naive", "hacpo"), ("qwen", "llama"))
    rows = [tuple(line.split()[:2]) for line in printed.splitlines() if line.split()[:1] in (["naive"], ["hacpo"])]
    assert rows == list(agents)
    page = (site_dir / "reports" / grid_file.stem / "report.html").read_text(encoding="utf-8")
    assert "<figure" in page
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)  # the chart library builds images
    assert not re.search(r'<[^>]* src="(?!data:)', markup), "the page is self-contained"
    assert not re.search(r"<script[^>]* src=", page)
    assert not marked(grid_file)


@pytest.mark.system
def test_grid_that_is_interrupted_takes_its_runs_off_the_queue(grid_file: Path) -> None:
    grid = planned(grid_file)
    process = start(grid_file, "--workers", "1")
    wait_until(lambda: trainings_under_way(grid), limit_s=300, meanwhile=lambda: check_running(process))
    process.send_signal(signal.SIGINT)
    assert "resumes from the last committed phase" in finish(process, code=130)
    assert not marked(grid_file)
    assert {run.state for run in flow_runs(grid_file).values()} <= {"Cancelled", "Completed"}


@pytest.mark.system
def test_grid_that_is_only_submitted_waits_in_the_queue_once_and_is_cancelled_by_a_person(
    grid_file: Path, site_dir: Path
) -> None:
    assert "2 experiments in the queue" in finish(start(grid_file, "--submit"))
    assert not planned(grid_file).experiments("done", "running")
    assert [run.state for run in flow_runs(grid_file).values()] == ["Scheduled"] * 2
    finish(start(grid_file, "--submit"))
    schedule = Schedule(ensure_server(site_dir), site_dir)
    queued = [run for run in schedule.all_flow_runs() if run.parameters["experiment"] in planned(grid_file).plans]
    assert len(queued) == 2, "nothing is in the queue twice"
    for experiment in planned(grid_file).plans:
        schedule.cancel(experiment)
    assert {run.state for run in flow_runs(grid_file).values()} == {"Cancelled"}


def test_grid_whose_worker_ends_says_why_and_leaves_nothing_in_the_queue(
    grid_file: Path, site_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    said = finish(start(grid_file), code=3)
    assert "hacpo: the worker ended (exit code 2; " in said
    assert "MLFLOW_TRACKING_URI: contains a password" in said
    assert {run.state for run in flow_runs(grid_file).values()} == {"Cancelled"}
    assert not marked(grid_file)
    assert [path for path in site_dir.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()] == []
