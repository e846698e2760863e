"""Flow runs that are forked from a process which has imported what they need, and the command that stands for one."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.service import launch
from flows.service.processes import end_child
from tests.waiting import wait_until

PRELOADED = """
import socket, sys
from flows.service.preloaded import fork_jobs
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
job = fork_jobs(listener)
exec(job["environment"]["CODE"])
"""
HANDLED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready", flush=True)
time.sleep(60)
"""
WAITING = "import os, time; print(os.getpid(), flush=True); time.sleep({seconds}); print('ended')"
Launch = Callable[[Path, str], subprocess.Popen[str]]


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process that forks, and its socket."""
    path = tmp_path_factory.mktemp("listening") / "s"
    process = subprocess.Popen([sys.executable, "-c", PRELOADED, str(path)])
    wait_until(path.exists, "nobody listens")
    yield process, path
    end_child(process)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Launch]:
    """Starts the command of a flow run, which is this code."""
    started = []

    def start(path: Path, code: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-I", "-S", launch.__file__, str(path), "/bin/echo", "by itself"]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={"CODE": code}, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_run_has_the_commands_output_and_folder_and_the_command_ends_as_it_does(
    end: str, start: Launch, listening: tuple[object, Path], tmp_path: Path
) -> None:
    code = "import os; print(job['folder'], {}, flush=True); "
    runs = [start(listening[1], code.format(number) + end) for number in range(3)]
    assert [run.communicate(timeout=20)[0] for run in runs] == [f"{tmp_path} {number}\n" for number in range(3)]
    assert [run.returncode for run in runs] == [3 if "exit" in end else -signal.SIGKILL] * 3


def test_signal_reaches_the_run(start: Launch, listening: tuple[object, Path]) -> None:
    run = start(listening[1], HANDLED)
    assert run.stdout is not None and run.stdout.readline() == "ready\n"
    run.terminate()
    assert run.wait(20) == 5


def test_run_ends_with_its_command(start: Launch, listening: tuple[object, Path]) -> None:
    run = start(listening[1], WAITING.format(seconds=60))
    assert run.stdout is not None
    forked = psutil.Process(int(run.stdout.readline()))
    run.kill()
    wait_until(lambda: not forked.is_running(), "the run goes on")


def test_no_run_begins_whose_command_has_ended_and_one_that_has_begun_ends_with_it(
    start: Launch, listening: tuple[subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    process, path = listening
    process.send_signal(signal.SIGSTOP)
    ended, killed = start(path, "open('begun', 'w')"), start(path, WAITING.format(seconds=60))
    time.sleep(0.5)  # both wait for an answer
    ended.terminate()
    assert ended.wait(20) == -signal.SIGTERM
    killed.send_signal(signal.SIGSTOP)  # so it does not read the answer
    process.send_signal(signal.SIGCONT)
    assert killed.stdout is not None
    forked = psutil.Process(int(killed.stdout.readline()))
    killed.kill()
    wait_until(lambda: not forked.is_running(), "the run goes on")
    assert not (tmp_path / "begun").exists()


def test_run_outlives_the_process_that_forked_it(
    start: Launch, listening: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, path = listening
    run = start(path, WAITING.format(seconds=1))
    assert run.stdout is not None
    run.stdout.readline()
    process.kill()
    assert run.communicate(timeout=20)[0] == "ended\n"
    assert run.returncode == 0
    assert start(path, "").communicate(timeout=20)[0] == "by itself\n", "nobody listens now"


def test_command_is_run_itself_if_the_process_dies_before_it_forks(start: Launch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        run = start(tmp_path / "s", "")
        listener.accept()[0].close()
    assert run.communicate(timeout=20)[0] == "by itself\n"
    assert run.returncode == 0
