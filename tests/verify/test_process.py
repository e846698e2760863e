"""A worker returns what its function returns, and ends with all that it started when it must."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hacpo_core.errors import VerificationError
from hacpo_core.verify.process import Reply, Worker
from tests.waiting import wait_until

SEARCH_PATH = os.pathsep.join(filter(None, sys.path))


@pytest.fixture
def made() -> Iterator[list[Worker]]:
    children = set(psutil.Process().children())
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.close()
    assert set(psutil.Process().children()) <= children


def worker_of(function: str, made: list[Worker], *, search_path: str = SEARCH_PATH) -> Worker:
    environment = {"PYTHONPATH": search_path}
    made.append(Worker(function, memory_mb=1024, environment=environment, message="no worker: {why}", is_silent=True))
    return made[-1]


def called(worker: Worker, *arguments: object, timeout_s: float = 60.0) -> Reply:
    return worker.thread.submit(worker.call, *arguments, timeout_s=timeout_s).result()


def test_a_call_returns_plain_values_or_the_text_of_the_exception(made: list[Worker]) -> None:
    worker = worker_of("builtins:sorted", made)
    assert called(worker, [3, 1.5, 2]).value == [1.5, 2, 3]
    assert called(worker, [1, "a"]).failure.startswith("TypeError: ")
    assert called(worker, "ba").value == ["a", "b"]


@pytest.mark.slow
def test_all_that_a_function_started_is_killed_at_the_time_limit(made: list[Worker]) -> None:
    worker = worker_of("subprocess:call", made)
    reply = worker.thread.submit(worker.call, ["sleep", "600"], timeout_s=3.0)

    def sleepers() -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [child for child in children if child.name() == "sleep" and child.status() != psutil.STATUS_ZOMBIE]

    (sleeper,) = wait_until(sleepers, "the function's process", every_s=0.01)
    assert reply.result().failure == "timeout"
    wait_until(lambda: not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE, "its end")


def test_an_interrupted_call_is_an_error_and_no_reply_and_the_next_one_starts_a_process(made: list[Worker]) -> None:
    worker = worker_of("builtins:pow", made)
    assert "not iterable" in called(worker, 2, 3).failure  # what pow returns is no list
    (process,) = (child for child in psutil.Process().children() if "builtins:pow" in child.cmdline())
    reply = worker.thread.submit(worker.call, 9, 9**9**2, timeout_s=900.0)
    before = process.cpu_times().user
    wait_until(lambda: process.cpu_times().user > before + 0.3, "the call at work", every_s=0.01)
    assert not reply.done()
    worker.interrupt()
    with pytest.raises(VerificationError, match="stopped during a call"):
        reply.result()
    assert "not iterable" in called(worker, 2, 3).failure


def test_a_process_that_always_ends_by_itself_is_an_error(made: list[Worker], tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os\nos.write(2, b'as it must')\nos._exit(3)")
    worker = worker_of("ends:now", made, search_path=f"{tmp_path}{os.pathsep}{SEARCH_PATH}")
    with pytest.raises(VerificationError, match="no worker: 4 processes in a row exited.*'as it must'"):
        called(worker)


@pytest.mark.parametrize(("num_deaths", "failure"), [(1, ""), (2, "crashed")])
def test_a_call_is_repeated_once_if_its_process_dies(
    num_deaths: int, failure: str, made: list[Worker], tmp_path: Path
) -> None:
    deaths = tmp_path / "deaths"
    (tmp_path / "dies.py").write_text(
        f"""import os, signal
def now():
    with open({str(deaths)!r}, "a") as file:
        file.write("x")
    if os.path.getsize({str(deaths)!r}) <= {num_deaths}:
        os.kill(os.getpid(), signal.SIGKILL)
    return [7]
"""
    )
    worker = worker_of("dies:now", made, search_path=f"{tmp_path}{os.pathsep}{SEARCH_PATH}")
    reply = called(worker)
    assert (reply.failure, reply.value) == (failure, None if failure else [7])
    assert deaths.read_text() == "xx"
