"""Lock of an experiment's folder: one process at a time may write."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import IO, Any

from hacpo_core.errors import LockedError
from hacpo_core.files import acquire, write_errors

LOCK_FILE = "lock"
_PATIENCE_S = 1.0


class ExperimentLock:
    """Exclusive right to write to an experiment's folder: the kernel's file lock, which even kill -9 releases.

    Machines that share a folder must share file locks, as NFS 4 does.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._file: Any = None

    def __enter__(self) -> ExperimentLock:
        with write_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")
        try:
            # `is_locked` in another process locks the file for an instant, which does not imply a writer.
            if not acquire(self._file, limit_s=_PATIENCE_S):
                holder = _holder(self._file)
                raise LockedError(
                    f"{self._path.parent} is being written by process {holder.get('pid', 'unknown')} on "
                    f"{holder.get('host', 'an unknown host')}; wait for it or stop it, then try again"
                )
            with write_errors(self._path):
                self._file.truncate(0)
                os.pwrite(
                    self._file.fileno(), json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0
                )
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.truncate(0)
        self._file.close()


def is_locked(root: Path) -> bool:
    """Whether a process holds the experiment's lock."""
    try:
        file = (root / LOCK_FILE).open(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _holder(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        holder: dict[str, Any] = json.loads(file.read() or "{}")
    except ValueError:
        return {}
    return holder
