"""A machine-wide lock per GPU, so that two experiments never use the same one.

The kernel releases the lock when the process dies.
"""

import itertools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from flows.planning.memory import nvidia_smi
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import occupied_gpus
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.files import acquire

_log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""devices of NVIDIA's and AMD's drivers, and of WSL"""
LOCKS_FOLDER = Path("/tmp")
"""folder of the locks, the same for all users, runs folders and TMPDIRs of the machine"""
_LOOK_EVERY_S, _LOG_EVERY_S = 1.0, 60.0


def visible_devices() -> list[str]:
    """GPUs that this process may use, as in CUDA_VISIBLE_DEVICES; CUDA ignores all entries after a negative number."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return [name for name in itertools.takewhile(lambda name: not name.startswith("-"), names) if name]
    import torch  # takes a second, and most commands do not need it

    return [str(i) for i in range(torch.cuda.device_count())]


def has_gpu_driver() -> bool:
    """Whether this machine has a driver of a GPU; imports no torch."""
    return any(path.exists() for path in DRIVERS)


def check_gpu_driver(config: ExperimentConfig) -> None:
    """Raise a ConfigError if the experiment needs a GPU of this machine, which has no driver."""
    needs_gpu = config.engine.device != "cpu" and config.placement.ray.address is None
    if needs_gpu and not has_gpu_driver():
        raise ConfigError(
            f"engine.device: got {config.engine.device}, but there is no GPU here; set engine.device=cpu, or use "
            "--hardware cpu"
        )


def cards_of(devices: Sequence[str]) -> dict[str, str]:
    """UUID of the GPU for each entry of CUDA_VISIBLE_DEVICES: an index, a UUID or its prefix.

    An entry that nvidia-smi does not list (a MIG device, a GPU of another vendor) is returned as it is.
    """
    uuids = dict(line.split(", ", 1) for line in nvidia_smi("index,uuid") if ", " in line)
    cards = {}
    for name in devices:
        matching = [uuid for uuid in uuids.values() if name.startswith("GPU-") and uuid.startswith(name)]
        cards[name] = uuids.get(name) or (matching[0] if len(matching) == 1 else name)
    return cards


@contextmanager
def gpu_locks(config: ExperimentConfig) -> Iterator[None]:
    """Wait for as many free GPUs as the experiment needs, lock them, and make only those visible to this process.

    Experiments on the CPU need none. A local Ray cluster gets the locked GPUs, so several can share the machine; an
    external cluster allocates its own GPUs.
    """
    if config.engine.device == "cpu" or config.placement.ray.address is not None:
        yield
        return
    devices = visible_devices()
    if not devices:  # `check_device` reports this
        yield
        return
    import torch

    number = occupied_gpus(config)
    if torch.cuda.is_initialized():  # too late to choose: CUDA uses the first ones
        devices = devices[:number]
    before = os.environ.get(VISIBLE)
    with locked_devices(devices, number, LOCKS_FOLDER) as locked:
        os.environ[VISIBLE] = ",".join(locked)  # CUDA reads it when it is initialised, later
        try:
            yield
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before


@contextmanager
def locked_devices(devices: Sequence[str], number: int, folder: Path) -> Iterator[list[str]]:
    """Hold the locks of some devices for the block; waits until enough are free, without holding any meanwhile.

    Args:
        devices: names to choose from.
        number: how many are needed; at most all devices are locked.
        folder: of the lock files.

    Raises:
        EngineError: a lock file cannot be opened.
    """
    number, cards = min(number, len(devices)), cards_of(devices)
    logged_at = 0.0
    while True:
        with ExitStack() as stack:
            locked: list[str] = []
            for device in devices:
                if len(locked) < number and acquire(stack.enter_context(_lock_file(folder, cards[device])), limit_s=0):
                    locked.append(device)
            if len(locked) == number:
                yield locked
                return
        if time.monotonic() - logged_at > _LOG_EVERY_S:
            logged_at = time.monotonic()
            _log.warning("waiting for %d of the GPUs %s, which other experiments use", number, ", ".join(devices))
        time.sleep(_LOOK_EVERY_S)


def _lock_file(folder: Path, card: str) -> IO[str]:
    """Open the lock file of a GPU for reading, which suffices to lock it; its owner may be another user."""
    path = folder / f"hacpo-gpu-{card.strip().replace('/', '_')}.lock"
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(descriptor, 0o644)  # regardless of the umask
            return os.fdopen(descriptor)
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}; it is not a GPU lock file, have its owner remove it") from error
