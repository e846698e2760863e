"""A lock per GPU, so that two experiments never meet on one, whoever started them; the kernel frees it at a kill."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import occupied_gpus
from hacpo_core.errors import EngineError

_log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
_SHARED = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))
_LOOK_EVERY_S, _SAY_EVERY_S = 1.0, 60.0


def visible_devices() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; behind a negative number CUDA sees none."""
    chosen = os.environ.get(VISIBLE)
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        return [name for name in itertools.takewhile(lambda name: not name.startswith("-"), names) if name]
    import torch  # a second, which most commands need not wait for

    return [str(i) for i in range(torch.cuda.device_count())]


def locks_folder() -> Path:
    """Where the locks lie: one folder for every user, runs folder and TMPDIR of the machine."""
    for folder in _SHARED:
        with suppress(OSError):
            if stat.S_IMODE(folder.stat().st_mode) & 0o1002 == 0o1002:  # all may write, none may remove another's
                return folder
    raise EngineError(f"GPUs cannot be locked: none of {', '.join(map(str, _SHARED))} is open to all users (mode 1777)")


def cards_of(devices: Sequence[str]) -> dict[str, str]:
    """UUID of the card behind each name of CUDA_VISIBLE_DEVICES: a number, a UUID or its beginning.

    A name that nvidia-smi does not know (a MIG device, another maker's card) stands for itself.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    known: dict[str, str] = {}
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        known = dict(line.split(", ", 1) for line in listed.splitlines() if ", " in line)
    found = {}
    for name in devices:
        begun = [uuid for uuid in known.values() if name.startswith("GPU-") and uuid.startswith(name)]
        found[name] = known.get(name) or (begun[0] if len(begun) == 1 else name)
    return found


@contextmanager
def gpu_slots(config: ExperimentConfig) -> Iterator[None]:
    """Wait until as many GPUs are free as the experiment needs, and let this process see those alone.

    Experiments on the CPU need none. A Ray that is started here gets the GPUs that are held, so several can share the
    machine; a cluster of several machines hands its own out.
    """
    if config.engine.device == "cpu" or config.placement.ray.address is not None:
        yield
        return
    devices = visible_devices()
    if not devices:  # what checks the device says so
        yield
        return
    import torch

    number = occupied_gpus(config)
    if torch.cuda.is_initialized():  # too late to choose: CUDA takes the first ones
        devices = devices[:number]
    before = os.environ.get(VISIBLE)
    with held(devices, number, locks_folder()) as own:
        os.environ[VISIBLE] = ",".join(own)  # read when CUDA starts, which nothing has done yet
        try:
            yield
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before


@contextmanager
def held(devices: Sequence[str], number: int, folder: Path) -> Iterator[list[str]]:
    """Hold the locks of some devices; waits, all or none, while others hold too many.

    Args:
        devices: names to choose from.
        number: that are needed; more than there are devices: all of them.
        folder: of the lock files.

    Raises:
        EngineError: a lock file is none, or another user keeps it to himself.
    """
    number, cards = min(number, len(devices)), cards_of(devices)
    said_at = 0.0
    while True:
        with ExitStack() as stack:
            own: list[str] = []
            for device in devices:
                if len(own) < number and _try_lock(stack.enter_context(_lock_file(folder, cards[device]))):
                    own.append(device)
            if len(own) == number:
                yield own
                return
        if time.monotonic() - said_at > _SAY_EVERY_S:
            said_at = time.monotonic()
            _log.warning("waiting for %d of the GPUs %s, which other experiments hold", number, ", ".join(devices))
        time.sleep(_LOOK_EVERY_S)


def _lock_file(folder: Path, card: str) -> IO[str]:
    """The lock file of a card, opened for reading, which is enough to lock it: its owner may be another user."""
    path = folder / f"hacpo-gpu-{card.strip().replace('/', '_')}.lock"
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(descriptor, 0o644)  # whatever the umask
            return os.fdopen(descriptor)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}; no lock file of a GPU, have its owner remove it") from error
    file = os.fdopen(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise EngineError(f"{path}: got something else than a file; no lock file of a GPU, have its owner remove it")
    return file


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
