"""A lock per GPU, so that two experiments never meet on one, whoever started them; the kernel frees it at a kill."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import torch

from hacpo_core.config import ExperimentConfig
from hacpo_core.validation import num_gpus

_log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to ask for GPUs must not settle which ones are seen
_LOOK_EVERY_S, _SAY_EVERY_S = 1.0, 60.0


def visible_devices() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get(VISIBLE)
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    return [str(i) for i in range(torch.cuda.device_count())]


def locks_folder() -> Path:
    """Where this user's locks lie, the same for every runs folder of the machine."""
    return Path(tempfile.gettempdir()) / f"hacpo-gpus-{os.getuid()}"


@contextmanager
def gpu_slots(config: ExperimentConfig) -> Iterator[None]:
    """Wait until as many GPUs are free as the experiment needs, and let this process see those alone.

    Experiments on the CPU need none. A Ray that is started here gets all GPUs of the machine; a cluster of several
    machines hands its own out.
    """
    if config.engine.device == "cpu" or config.placement.ray.address is not None:
        yield
        return
    devices = visible_devices()
    if not devices:  # what checks the device says so
        yield
        return
    number = len(devices) if config.placement.kind == "ray" else num_gpus(config)
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
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = min(number, len(devices))
    said_at = 0.0
    while True:
        with ExitStack() as stack:
            own: list[str] = []
            for device in devices:
                if len(own) < number and _try_lock(stack.enter_context(_lock_file(folder, device))):
                    own.append(device)
            if len(own) == number:
                yield own
                return
        if time.monotonic() - said_at > _SAY_EVERY_S:
            said_at = time.monotonic()
            _log.warning("waiting for %d of the GPUs %s, which other experiments hold", number, ", ".join(devices))
        time.sleep(_LOOK_EVERY_S)


def _lock_file(folder: Path, device: str) -> IO[str]:
    return (folder / f"{device.replace('/', '_')}.lock").open("a")


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
