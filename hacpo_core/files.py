"""Atomic writing of files (temporary file, then rename), locks, digests, JSON."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hacpo_core.errors import StoreError, first_line

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Sync a file's content, or the renames inside a folder, to disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full_disk(error: BaseException) -> bool:
    """Whether the disk is full; some errors, such as those of a copied folder, say so in their text alone."""
    number = getattr(error, "errno", None)
    return number in _FULL_DISK or any(os.strerror(full) in str(error) for full in _FULL_DISK)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert OSError of a write to a StoreError with a remedy."""
    try:
        yield
    except OSError as error:
        what = error.strerror or first_line(error)
        if is_full_disk(error):
            what = "the disk is full; free some space, then resume"
        elif error.errno == errno.EROFS:
            what = "the disk is read-only; make it writable, or name another folder"
        elif error.errno in (errno.EACCES, errno.EPERM):
            what = f"{what}; change its permissions, or name another folder"
        raise StoreError(f"cannot write {path}: {what}") from error


def write_atomically(path: Path, content: bytes | memoryview, *, syncs: bool = True) -> None:
    """Write a temporary file beside `path` and rename it into place.

    Args:
        path: final name; its folder is created if missing.
        content: of the file.
        syncs: sync the file to disk before returning.

    Raises:
        StoreError: the disk is full or not writable; `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with write_errors(path):
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


def acquire(file: IO[Any], *, limit_s: float) -> bool:
    """Lock an open file for its process and those that inherit it; False if it is still locked after the limit.

    The kernel releases the lock when they die.
    """
    deadline = time.monotonic() + limit_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def make_folder(folder: Path, make: Callable[[Path], object]) -> Path:
    """Make a folder unless it exists: in a temporary one, which is then renamed.

    Several processes may call this at the same time; one of them makes it. A process that is killed leaves nothing at
    the folder's name.

    Args:
        folder: its name.
        make: writes the contents into the folder that it is given; its errors pass through, but for a full disk.

    Returns:
        the folder.

    Raises:
        StoreError: the disk is full or not writable.
    """
    if folder.is_dir():
        return folder
    with write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".{folder.name}.lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            temporary = folder.with_name(f".{folder.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
            try:
                with write_errors(folder):
                    temporary.mkdir()
                try:
                    make(temporary)
                except OSError as error:
                    if not is_full_disk(error):
                        raise
                    with write_errors(folder):
                        raise
                with write_errors(folder):
                    temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_json(path: Path, value: Any, *, syncs: bool = True) -> None:
    """`write_atomically` for a JSON-able value, indented."""
    write_atomically(path, as_json(value, indent=1), syncs=syncs)


def as_json(value: Any, *, indent: int | None = None) -> bytes:
    """A JSON-able value as a file's content."""
    return (json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=True) + "\n").encode()


def read_json(path: Path) -> Any:
    """Content of a JSON file.

    Raises:
        StoreError: it is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
