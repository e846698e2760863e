"""Detached processes of a runs folder: a record finds each again, a lock keeps it single, its owner ends it."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

STOP_LIMIT_S = 15.0
_CLOCK_SLACK_S = 2.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def home_of(runs_dir: Path) -> Path:
    """Folder of the services of a runs folder: records, logs, Prefect's database."""
    return (runs_dir / "prefect").absolute()


def find_process(pid: int, since_boot: float) -> psutil.Process | None:
    """The process with this pid if it is the one that began so many seconds after the machine did, and alive."""
    try:
        process = psutil.Process(pid)
        is_it = abs(_since_boot(process) - since_boot) < _CLOCK_SLACK_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if is_it else None


def _since_boot(process: psutil.Process) -> float:
    # psutil's times of processes are the wall clock's, and move when somebody sets that
    return process.create_time() - psutil.boot_time()


def end_family(
    process: psutil.Process, *, spared: Container[psutil.Process] = (), limit_s: float = STOP_LIMIT_S
) -> None:
    """Ask a process and all that it started to end; kill what is left after the limit.

    Args:
        process: the first to go.
        spared: descendants that stay, with all that they started.
        limit_s: seconds.
    """
    with suppress(psutil.NoSuchProcess):
        family = [*_descendants(process, spared), process]
        for signal_all in (psutil.Process.terminate, psutil.Process.kill):
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    signal_all(member)
            _, family = psutil.wait_procs(family, timeout=limit_s)


def _descendants(process: psutil.Process, spared: Container[psutil.Process]) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        for child in process.children():
            if child not in spared:
                yield from (*_descendants(child, spared), child)


def end_with_parent() -> None:
    """Between fork and exec: a process whose parent is killed is asked to end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Record:
    """A file that says which process serves a runs folder, and where it listens. Readable by its owner alone.

    Other machines may share the folder: their processes are never taken for this one's.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / f"{name}.json"

    def read(self) -> dict[str, Any] | None:
        """What was last written, whether or not its process lives; None where nothing was, or the file is torn."""
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def write(self, pid: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Name a process that serves from now on."""
        since_boot = _since_boot(psutil.Process(pid))
        value = {"pid": pid, "since_boot": since_boot, "host": socket.gethostname(), **facts}
        write_private(self.path, json.dumps(value))
        return value

    def process(self) -> psutil.Process | None:
        """The process that the record names, None where it is gone or another machine's."""
        value = self.read()
        if value is None or value.get("host", socket.gethostname()) != socket.gethostname():
            return None
        try:
            return find_process(int(value["pid"]), float(value["since_boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    def end(self) -> bool:
        """End the process, and only that; False where there was none. What the record says stays."""
        process = self.process()
        if process is not None:
            end_family(process)
        return process is not None


@contextmanager
def only_one(path: Path) -> Iterator[bool]:
    """Whether this process alone holds a lock file; the kernel frees it at a kill, so none is ever stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.rename(path)


def free_port(*preferred: int) -> int:
    """The first of these ports of the loopback address that is free, else any."""
    for port in (*preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise OSError("no port of 127.0.0.1 is free")
