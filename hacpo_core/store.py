"""The step store: what each phase of each step committed, so that no rollout is ever paid for twice.

Layout of one experiment's folder:

    lock                        held by the one process that writes
    config.yaml                 resolved configuration
    steps/000012/<file>         written to a temporary name, renamed
    steps/000012/manifest.json  phases, their files and SHA-256 digests; replaced as a whole, last

A commit outlives its process at once. A power cut it outlives a moment later, when a thread has synced it to the disk:
a file that was not there yet does not have the digest that the manifest names, and a manifest that was not is torn,
which makes its step's phases run again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow
from pyarrow import parquet

from hacpo_core.background import Background
from hacpo_core.errors import LockedError, StoreError

if TYPE_CHECKING:  # a fifth of a second that a first sampling need not wait for; pyarrow imports it at the first commit
    import pandas as pd

_log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
HEARTBEAT_S = 10.0
STALE_S = 90.0
_PATIENCE_S, _PAUSE_S = 1.0, 0.05
_RECORD_BYTES = 256


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file's content, or the renames inside a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full; free some space, then resume" if full else error.strerror or str(error)
        raise StoreError(f"cannot write {path}: {what}") from error


def write_atomically(path: Path, content: bytes, *, syncs: bool = True) -> None:
    """Write a temporary file beside `path` and rename it into place.

    Args:
        path: final name; its folder is made when missing.
        content: of the file.
        syncs: return when the file would survive a power cut.

    Raises:
        StoreError: the disk is full or not writable; nothing stands at `path` that did not stand there before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with _write_errors(path):
        try:
            try:
                temporary.write_bytes(content)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(content)
            if syncs:
                sync(temporary)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if syncs:
            sync(path.parent)


def write_json(path: Path, value: Any, *, syncs: bool = True) -> None:
    """`write_atomically` for a JSON-able value, indented."""
    write_atomically(path, _as_json(value, indent=1), syncs=syncs)


def _as_json(value: Any, *, indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=True) + "\n").encode()


def _as_parquet(columns: Mapping[str, Any]) -> bytes:
    # For a few rows a frame on the way takes three times as long; for many, dictionaries and statistics twice as long.
    with pyarrow.BufferOutputStream() as stream:
        parquet.write_table(pyarrow.table(dict(columns)), stream, use_dictionary=False, write_statistics=False)
        return bytes(stream.getvalue())


def read_json(path: Path) -> Any:
    """Content of a JSON file.

    Raises:
        StoreError: it is missing or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


class StepStore:
    """Committed outputs of an experiment's phases.

    A phase is a name such as "rollout.qwen"; its output is a set of named files, tables (`.parquet`) or JSON values.
    Reading checks every byte against the manifest: a torn or altered file is as good as no file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mutex = threading.Lock()
        self._manifests: dict[int, dict[str, Any]] = {}  # as this object wrote them; nobody else may, meanwhile
        self._unsynced: dict[Path, None] = {}
        self._syncs = Background("sync")

    def folder(self, step: int) -> Path:
        """Folder of one step (1-based; 0 holds what comes before training)."""
        return self.root / "steps" / f"{step:06d}"

    def _manifest(self, step: int) -> dict[str, Any]:
        if step in self._manifests:
            return self._manifests[step]
        path = self.folder(step) / MANIFEST
        if not path.exists():
            return {"step": step, "phases": {}}
        try:
            manifest: dict[str, Any] = read_json(path)
        except StoreError as error:
            _log.warning("the manifest of step %d is torn, so its phases are run again: %s", step, error)
            return {"step": step, "phases": {}}
        return manifest

    def committed(self, step: int) -> tuple[str, ...]:
        """Names of the step's committed phases, in the order of their commit."""
        return tuple(self._manifest(step)["phases"])

    def committed_at_ms(self, step: int, phase: str) -> int:
        """When the phase was committed, in milliseconds since the epoch."""
        return int(self._manifest(step)["phases"][phase]["committed_at"] * 1000)

    def is_intact(self, step: int, phase: str) -> bool:
        """True when the phase is committed and all of its files are as they were written."""
        entry = self._manifest(step)["phases"].get(phase)
        if entry is None:
            return False
        paths = ((self.folder(step) / name, digest) for name, digest in entry["files"].items())
        return all(path.is_file() and sha256_of(path) == digest for path, digest in paths)

    def commit(self, step: int, phase: str, outputs: Mapping[str, Any], *, outdates: Collection[str] = ()) -> None:
        """Write a phase's outputs and enter them into the manifest; the phase counts only after that.

        Args:
            step: number of the step.
            phase: name of the phase; an earlier commit of the same phase is replaced.
            outputs: file name to a table's columns by name (.parquet) or to a JSON-able value (.json).
            outdates: phases of the step that were made from an earlier commit of this one, and no longer count.

        Raises:
            StoreError: the disk is full or not writable; also of an earlier commit, found while it was synced.
        """
        folder = self.folder(step)
        digests = {}
        for name, value in outputs.items():
            content = _as_parquet(value) if name.endswith(".parquet") else _as_json(value)
            write_atomically(folder / name, content, syncs=False)
            digests[name] = hashlib.sha256(content).hexdigest()
        with self._mutex:
            phases = self._manifest(step)["phases"]
            kept = {name: entry for name, entry in phases.items() if name not in (phase, *outdates)}
            entry = {"files": digests, "committed_at": time.time()}
            manifest = {"step": step, "phases": {**kept, phase: entry}}
            write_atomically(folder / MANIFEST, _as_json(manifest), syncs=False)
            self._manifests[step] = manifest
            self._unsynced |= dict.fromkeys([*(folder / name for name in digests), folder / MANIFEST])
            self._unsynced |= dict.fromkeys([folder, folder.parent, self.root])
        self._syncs.do(self._sync_waiting)

    def sync(self) -> None:
        """Wait until all that was committed would survive a power cut.

        Raises:
            StoreError: the disk is full or broken.
        """
        self._syncs.do(self._sync_waiting)  # also what could not be synced before
        self._syncs.wait()

    def _sync_waiting(self) -> None:
        with self._mutex:
            paths, self._unsynced = self._unsynced, {}
        try:
            for path in paths:
                with _write_errors(path):
                    sync(path)
        except StoreError:
            with self._mutex:
                self._unsynced = paths | self._unsynced
            raise

    def read_table(self, step: int, phase: str, name: str, *, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """A committed table, or some of its columns.

        Raises:
            StoreError: the phase is not committed, or the file is torn or altered.
        """
        import pandas as pd

        return pd.read_parquet(self._checked(step, phase, name), columns=None if columns is None else list(columns))

    def read_value(self, step: int, phase: str, name: str) -> Any:
        """A committed JSON value; errors as for `read_table`."""
        return read_json(self._checked(step, phase, name))

    def _checked(self, step: int, phase: str, name: str) -> Path:
        entry = self._manifest(step)["phases"].get(phase)
        path = self.folder(step) / name
        if entry is None or name not in entry["files"]:
            raise StoreError(f"step {step} has no committed {phase}/{name} in {self.root}; run the phase again")
        if not path.is_file() or sha256_of(path) != entry["files"][name]:
            raise StoreError(f"{path} is missing or was altered after it was committed; restore it or start again")
        return path

    def last_step(self) -> int:
        """Highest step with a folder; 0 when there is none."""
        folder = self.root / "steps"
        return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()), default=0)


class ExperimentLock:
    """Exclusive right to write to an experiment's folder.

    The kernel's lock frees itself at kill -9. Across machines that share a disk without shared locks, a heartbeat
    that is younger than `STALE_S` counts as held.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._file: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="experiment-lock", daemon=True)

    def __enter__(self) -> ExperimentLock:
        with _write_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")
        try:
            self._acquire()
        except BlockingIOError as error:
            holder = _holder(self._file)
            self._file.close()
            raise LockedError(
                f"{self._path.parent} is being written by process {holder.get('pid', 'unknown')} on "
                f"{holder.get('host', 'an unknown host')}; wait for it or end it, then try again"
            ) from error
        holder = _holder(self._file)
        if _beats_elsewhere(holder):
            self._file.close()
            raise LockedError(
                f"{self._path.parent} is being written on host {holder['host']}, whose last heartbeat is younger than "
                f"{STALE_S:.0f} s; wait for it or end it, then try again"
            )
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._file.truncate(0)
        self._file.close()

    def _acquire(self) -> None:
        # is_locked of another process holds the file for an instant, so one refusal does not mean a writer.
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _beat(self) -> None:
        record = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "heartbeat": time.time()})
        # In place and at one length: whoever reads on another machine, or after a write that failed, finds a whole one.
        os.pwrite(self._file.fileno(), record.ljust(_RECORD_BYTES).encode(), 0)
        os.fsync(self._file.fileno())

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self._beat()
            except OSError:  # a full disk: the kernel's lock still holds, the next beat may succeed
                continue


def is_locked(root: Path) -> bool:
    """True while a process holds the experiment's lock, here or on another machine that shares the disk."""
    try:
        file = (root / "lock").open(encoding="utf-8")
    except FileNotFoundError:
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
    """Whether another machine wrote a heartbeat lately: its kernel's lock may not be seen here."""
    is_fresh = time.time() - float(holder.get("heartbeat", 0.0)) < STALE_S
    return is_fresh and holder.get("host", socket.gethostname()) != socket.gethostname()
