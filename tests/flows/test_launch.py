"""A module that the fork server runs, as whoever started `flows.service.launch` sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.service.fork_server import ForkServer
from flows.service.launch import FORK_SERVER, LENGTH

PROBE = """
import json, os, sys, time
facts = {
    "words": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "input": sys.stdin.readline(), "pid": os.getpid(),
    "worker": os.environ.get("PREFECT__WORKER_NAME"), "is_fork": "torch" in sys.modules,
}
try:
    print(json.dumps(facts), flush=True)
    exec(sys.argv[1])
finally:
    print("cleaned up", flush=True)
"""
WAITS = "time.sleep(60)"
FAULTS = """
import errno, os, signal
fork, pidfd_open, me, forks = os.fork, os.pidfd_open, os.getpid(), []

def fork_but_once():
    forks.append(1)
    if len(forks) == 1:
        raise BlockingIOError(errno.EAGAIN, "no process is left")
    return fork()

def die_when_asked(pid):
    if os.getpid() == me and os.path.exists("FOLDER/die"):
        os.kill(me, signal.SIGKILL)
    return pidfd_open(pid)

os.fork, os.pidfd_open = fork_but_once, die_when_asked
"""


class Launcher:
    """`python -m flows.service.launch probe CODE`, and what the probe says about the process that it runs in."""

    def __init__(self, code: str, environment: dict[str, str], folder: Path) -> None:
        words = [sys.executable, "-m", "flows.service.launch", "probe", code]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("hello\n")
        self.process.stdin.flush()
        self.facts: dict[str, Any] = json.loads(self.process.stdout.readline())

    def is_over(self) -> bool:
        """Whether the process that runs the probe has ended."""
        try:
            return psutil.Process(self.facts["pid"]).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def finish(self) -> tuple[int, str, str]:
        """Exit code, and what it said last."""
        assert self.process.stdout is not None and self.process.stderr is not None
        said, complained = self.process.stdout.read(), self.process.stderr.read()
        return self.process.wait(60), said, complained


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.py").write_text(PROBE, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[ForkServer]:
    found = ForkServer(environment)
    yield found
    found.end()


@pytest.fixture
def launch(environment: dict[str, str], server: ForkServer, tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Starts launchers beside the module's server; kills what a test leaves."""
    begun: list[Launcher] = []

    def start(code: str = "", of: ForkServer = server, **variables: str) -> Launcher:
        begun.append(Launcher(code, environment | of.variables | variables, tmp_path))
        return begun[-1]

    yield start
    for launcher in begun:
        with launcher.process:
            launcher.process.kill()


def wait(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def test_fork_is_what_the_launcher_would_be(launch: Callable[..., Launcher], tmp_path: Path) -> None:
    launcher = launch("print('said'); print('complained', file=sys.stderr)", PREFECT__WORKER_NAME="vm")
    assert launcher.facts["pid"] != launcher.process.pid
    assert launcher.facts["is_fork"]
    assert launcher.facts["name"] == "__main__"
    assert launcher.facts["words"] == launcher.process.args[-1:]  # type: ignore[index]
    assert launcher.facts["folder"] == str(tmp_path)
    assert launcher.facts["input"] == "hello\n"
    assert launcher.facts["worker"] == "vm"
    assert launcher.finish() == (0, "said\ncleaned up\n", "complained\n")
    assert launch().facts["worker"] is None, "and the next one has nothing of it"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit(3)", 3),
        ("raise RuntimeError('no')", 1),
        ("os._exit(255)", 255),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_launcher_ends_as_its_fork_ends(code: str, expected: int, launch: Callable[..., Launcher]) -> None:
    launcher = launch(code)
    assert launcher.facts["is_fork"]
    code_found, _, complained = launcher.finish()
    assert code_found == expected
    assert ("RuntimeError: no" in complained) == (expected == 1)


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, ""), (signal.SIGINT, "cleaned up\n")])
def test_signals_are_passed_on(number: signal.Signals, said: str, launch: Callable[..., Launcher]) -> None:
    launcher = launch(WAITS)
    wait(lambda: handles(launcher.process.pid, signal.SIGTERM), "the launcher passes nothing on")
    launcher.process.send_signal(number)
    assert launcher.finish()[:2] == (-number, said)
    wait(launcher.is_over, "the fork goes on")


def test_launcher_that_is_killed_takes_its_fork_along(launch: Callable[..., Launcher]) -> None:
    busy = launch("sum(range(10**12))")  # it holds Python's lock and looks at nothing
    busy.process.kill()
    wait(busy.is_over, "the fork goes on")


def test_another_environment_has_a_process_of_its_own(launch: Callable[..., Launcher]) -> None:
    for variables in ({"OMP_NUM_THREADS": "3"}, {"PREFECT_API_URL": "http://elsewhere"}):
        launcher = launch("sys.exit(4)", **variables)
        assert launcher.facts["pid"] == launcher.process.pid
        assert not launcher.facts["is_fork"]
        assert launcher.finish()[0] == 4


def test_launcher_ended_while_the_server_still_imports_is_never_forked_for_and_servers_end_leaves_forks(
    environment: dict[str, str], launch: Callable[..., Launcher], tmp_path: Path
) -> None:
    server = ForkServer(environment)
    words = [sys.executable, "-m", "flows.service.launch", "probe", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    early = subprocess.Popen(words, env=environment | server.variables, stdin=subprocess.DEVNULL)
    time.sleep(0.5)
    early.terminate()
    assert early.wait(2) == -signal.SIGTERM
    first, second = launch(WAITS, of=server), launch(WAITS, of=server)
    assert first.facts["is_fork"] and second.facts["is_fork"]
    assert not (tmp_path / "ran").exists()
    server.end()
    psutil.Process(first.facts["pid"]).kill()
    assert first.finish()[0] == 1, "nobody knows how it ended, and the second does not keep it waiting"
    assert not second.is_over()
    second.process.send_signal(signal.SIGINT)
    assert second.finish()[1] == "cleaned up\n"
    late = launch("sys.exit(5)", of=server)  # alone
    assert late.facts["pid"] == late.process.pid
    assert late.finish()[0] == 5


def test_server_in_trouble_goes_on_and_one_that_dies_lets_no_run_begin_twice(
    environment: dict[str, str], launch: Callable[..., Launcher], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULTS.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    server = ForkServer(environment | path)
    alone = launch(of=server, **path)
    assert alone.facts["pid"] == alone.process.pid, "no process was left to fork"
    forked = launch(of=server, **path)
    assert forked.facts["is_fork"], "and then there was"
    assert forked.finish()[0] == 0  # which the server reports, so that it is done with this one before it is to die
    (tmp_path / "die").touch()
    (tmp_path / "runs").mkdir()
    orphan = launch(f"open({str(tmp_path / 'runs')!r} + f'/{{os.getpid()}}', 'w')", of=server, **path)
    code, _, complained = orphan.finish()
    assert code == 1
    assert "nobody knows how: the fork server is gone" in complained
    assert [file.name for file in (tmp_path / "runs").iterdir()] == [str(orphan.facts["pid"])]
    server.end()


def test_server_ends_with_its_owner(environment: dict[str, str], launch: Callable[..., Launcher]) -> None:
    code = "from flows.service.fork_server import ForkServer; import os, time; s = ForkServer(dict(os.environ)); "
    code += "print(s.variables, s._process.pid, flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline().split()[-1])
    owner.kill()
    owner.communicate()
    wait(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it goes on")


def test_garbage_and_strangers_are_refused(server: ForkServer, launch: Callable[..., Launcher]) -> None:
    assert launch().finish()[0] == 0  # by now it listens
    address = f"\0{server.variables[FORK_SERVER]}"
    for garbage in (b"", b"x", LENGTH.pack(3) + b"{}\n", LENGTH.pack(9) + b"[1, 2, 3]"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    if os.getuid() == 0:
        code = "import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
        code += f"s.connect({address!r}); print(s.recv(1))"
        words = [sys.executable, "-I", "-S", "-c", code]
        stranger = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        assert stranger.stdout == "b''\n"
    assert launch().facts["is_fork"], "and the server goes on"
