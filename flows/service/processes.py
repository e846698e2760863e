"""Background processes of a runs folder: records to find them, locks to allow only one, and ways to end them."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from hacpo_core.files import acquire

STOP_LIMIT_S = 15.0
_CLOCK_SLACK_S = 2.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def home_of(runs_dir: Path) -> Path:
    """Folder for the services of a runs folder: records, logs, Prefect's database."""
    return (runs_dir / "prefect").absolute()


def module_command(module: str, *arguments: str) -> list[str]:
    """Command that runs a module of the installation; -P keeps files of the working directory from shadowing it."""
    return [sys.executable, "-P", "-m", module, *arguments]


def find_process(pid: int, since_boot: float) -> psutil.Process | None:
    """The live process with this pid and start time, or None.

    Args:
        pid: process id, which the system may have reused.
        since_boot: start time of the expected process, seconds after boot.
    """
    try:
        process = psutil.Process(pid)
        is_same = abs(_since_boot(process) - since_boot) < _CLOCK_SLACK_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if is_same else None


def _since_boot(process: psutil.Process) -> float:
    # psutil derives process times from the wall clock, so they change when the clock is set
    return process.create_time() - psutil.boot_time()


def end_family(process: psutil.Process, *, kept: Container[psutil.Process] = (), limit_s: float = STOP_LIMIT_S) -> None:
    """Terminate a process and its descendants; kill those that are left after the limit.

    Args:
        process: root of the process tree.
        kept: descendants to keep, with their own descendants.
        limit_s: time to wait before killing, and again after it.
    """
    with suppress(psutil.NoSuchProcess):
        _end_all([*_descendants(process, kept), process], limit_s)


def end_descendants(*, kept: Container[psutil.Process] = ()) -> None:
    """End everything that this process started, as `end_family` does."""
    _end_all(list(_descendants(psutil.Process(), kept)), STOP_LIMIT_S)


def _end_all(processes: Sequence[psutil.Process], limit_s: float) -> None:
    for signal_all in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                signal_all(process)
        _, processes = psutil.wait_procs(processes, timeout=limit_s)


def end_child(child: subprocess.Popen[bytes], *, kept: Container[psutil.Process] = ()) -> None:
    """End a child process and its descendants, as `end_family` does, unless the child has already been waited for.

    `Popen.wait` is not used: an interruption inside an earlier `wait` or `poll` can leave its lock taken forever.
    """
    if child.returncode is None:  # so the pid is still its own
        with suppress(psutil.NoSuchProcess):
            end_family(psutil.Process(child.pid), kept=kept)


def _descendants(process: psutil.Process, kept: Container[psutil.Process]) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        for child in process.children():
            if child not in kept:
                yield from (*_descendants(child, kept), child)


def end_with_parent() -> None:
    """Have this process receive SIGTERM when its parent dies; use as `preexec_fn`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Record:
    """A file that names the process of a service and where it listens; readable by its owner only.

    Several machines may share the folder, so the record also names the host.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / f"{name}.json"

    def read(self) -> dict[str, Any] | None:
        """The last record, whether or not its process is alive; None if the file is missing or corrupt."""
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def write(self, pid: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Record a process with additional facts; returns the record."""
        since_boot = _since_boot(psutil.Process(pid))
        value = {"pid": pid, "since_boot": since_boot, "host": socket.gethostname(), **facts}
        write_private(self.path, json.dumps(value))
        return value

    def process(self) -> psutil.Process | None:
        """The recorded process; None if it is gone or belongs to another machine."""
        value = self.read()
        if value is None or value.get("host", socket.gethostname()) != socket.gethostname():
            return None
        try:
            return find_process(int(value["pid"]), float(value["since_boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    def end(self) -> bool:
        """End the recorded process and its descendants; False if there was none. The record is kept."""
        process = self.process()
        if process is not None:
            end_family(process)
        return process is not None


def worker_record(runs_dir: Path) -> Record:
    """Record of the `hacpo worker` of a runs folder on this machine; each machine that shares the folder has one."""
    return Record(home_of(runs_dir), f"worker.{socket.gethostname()}")


def slots_here(runs_dir: Path) -> int | None:
    """Experiments at a time of the `hacpo worker` of this runs folder on this machine; None if there is none."""
    record = worker_record(runs_dir)
    return int((record.read() or {}).get("slots", 1)) if record.process() is not None else None


@contextmanager
def only_one(path: Path) -> Iterator[bool]:
    """Try to hold a lock file for the block; yields whether that succeeded.

    The kernel releases the lock when the process dies, so it cannot become stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        yield acquire(file, limit_s=0.0)


def inode_of(path: Path) -> int | None:
    """Number of a file or folder on its disk, by which a new one of the same name differs; None: there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def open_log(path: Path) -> IO[bytes]:
    """Open a service's log for appending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only; one process at a time may write it."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.rename(path)


def free_port(*preferred: int) -> int:
    """The first of these loopback ports that is free, or else any free port."""
    for port in (*preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise OSError("no port is free on 127.0.0.1")
