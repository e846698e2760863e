"""Lock of an experiment's folder: one process at a time may write, across machines."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hacpo_core.errors import LockedError
from hacpo_core.files import write_errors

HEARTBEAT_S = 10.0
STALE_S = 90.0
_PATIENCE_S, _PAUSE_S = 1.0, 0.05
_RECORD_BYTES = 256


class ExperimentLock:
    """Exclusive right to write to an experiment's folder.

    The kernel's file lock is released even by kill -9. For machines that share a disk without sharing file locks, a
    heartbeat younger than `STALE_S` counts as a held lock.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._file: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="experiment-lock", daemon=True)

    def __enter__(self) -> ExperimentLock:
        with write_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")
        try:
            self._acquire()
            with write_errors(self._path):
                self.beat()
            self._thread.start()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._file.truncate(0)
        self._file.close()

    def _acquire(self) -> None:
        # `is_locked` in another process locks the file for an instant, so a single failure does not imply a writer.
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    holder = _holder(self._file)
                    raise LockedError(
                        f"{self._path.parent} is being written by process {holder.get('pid', 'unknown')} on "
                        f"{holder.get('host', 'an unknown host')}; wait for it or stop it, then try again"
                    ) from error
            time.sleep(_PAUSE_S)
        holder = _holder(self._file)
        if _beats_elsewhere(holder):
            raise LockedError(
                f"{self._path.parent} is being written on host {holder['host']}, whose last heartbeat is younger than "
                f"{STALE_S:.0f} s; wait for it or stop it, then try again"
            )

    def beat(self) -> None:
        """Renew the heartbeat; raises OSError if the disk is full."""
        record = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "heartbeat": time.time()})
        # Written in place with a fixed length, so that readers on other machines always find a complete record.
        os.pwrite(self._file.fileno(), record.ljust(_RECORD_BYTES).encode(), 0)
        os.fsync(self._file.fileno())

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self.beat()
            except OSError:  # a full disk: the kernel's lock still holds, the next beat may succeed
                continue


def is_locked(root: Path) -> bool:
    """Whether a process holds the experiment's lock, here or on another machine that shares the disk."""
    try:
        file = (root / "lock").open(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return _beats_elsewhere(_holder(file))


def _holder(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        holder: dict[str, Any] = json.loads(file.read() or "{}")
    except ValueError:
        return {}
    return holder


def _beats_elsewhere(holder: Mapping[str, Any]) -> bool:
    """Whether another machine, whose file lock may not be visible here, wrote a recent heartbeat."""
    is_fresh = time.time() - float(holder.get("heartbeat", 0.0)) < STALE_S
    return is_fresh and holder.get("host", socket.gethostname()) != socket.gethostname()
