"""A grid's own worker: started once, unless another worker serves the folder, and ended with the grid."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest
from prefect.workers.process import ProcessWorker

from flows.service.prefect_server import PrefectServer, stop_server
from flows.service.processes import home_of
from flows.service.worker import find_worker, worker_environment, worker_here
from flows.service.worker_loop import worker_of_slots
from hacpo_core.config.threads import SLOTS
from hacpo_core.errors import EngineError
from tests.waiting import wait_until


def test_experiments_of_a_worker_know_how_many_share_the_machine(tmp_path: Path) -> None:
    environment = worker_environment(tmp_path, PrefectServer("http://127.0.0.1:1", ""), 3)
    assert environment[SLOTS] == "3"


@pytest.mark.slow
def test_worker_that_fails_is_one_error_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")

    def watch() -> None:
        with worker_here(tmp_path, num_slots=1) as check:
            while True:  # pytest's own time limit ends it
                check()
                time.sleep(0.1)

    with pytest.raises(EngineError, match=r"the worker ended \(exit code 2; .*worker.log\): .*contains a password"):
        watch()


@pytest.mark.system
def test_grid_goes_on_with_a_worker_of_its_own_when_the_one_it_found_ends_or_its_own_is_killed(
    tmp_path: Path, migrated: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    migrated(tmp_path)
    words = [sys.executable, "-m", "flows.cli", "worker", "--runs-dir", str(tmp_path), "--slots", "1"]
    other = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own: psutil.Process | None = None

    def serving(pid: int | None) -> psutil.Process | None:
        found = find_worker(tmp_path)
        return found if found is not None and pid in (None, found.pid) else None

    try:
        wait_until(lambda: serving(other.pid))
        with worker_here(tmp_path, num_slots=1) as check:
            check()
            assert not (home_of(tmp_path) / "worker.log").exists(), "another worker serves the folder"
            other.terminate()
            wait_until(lambda: other.poll() is not None, meanwhile=check)
            wait_until(lambda: serving(None), meanwhile=check)
            own = find_worker(tmp_path)
            assert own is not None
            assert own.ppid() == psutil.Process().pid
            own.kill()
            wait_until(lambda: serving(None) not in (None, own), meanwhile=check)
            assert "the worker was killed by SIGKILL; starting another one" in caplog.text
            own = find_worker(tmp_path)
            assert own is not None
        assert not own.is_running()
        assert find_worker(tmp_path) is None
        said = (home_of(tmp_path) / "worker.log").read_text(encoding="utf-8")
        assert said.count("worker of ") == 2
    finally:
        other.kill()
        other.wait()
        stop_server(tmp_path)


def test_a_worker_asks_for_flow_runs_only_while_a_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's worker asks twice a second, and each answer lists up to 200 flow runs of a grid that wait."""
    requests = []

    async def request(worker: ProcessWorker) -> None:
        requests.append(worker)

    async def poll() -> None:
        worker = worker_of_slots(1)
        worker._limiter = anyio.CapacityLimiter(1)
        await worker._get_scheduled_flow_runs()
        worker._limiter.acquire_on_behalf_of_nowait("a run")
        await worker._get_scheduled_flow_runs()

    monkeypatch.setattr(ProcessWorker, "_get_scheduled_flow_runs", request)
    asyncio.run(poll())
    assert len(requests) == 1
