"""Settings of a process that trains or watches training."""

from __future__ import annotations

import atexit
import functools
import gc
import os


@functools.cache
def configure_process() -> None:
    """Set up garbage collection and CUDA's numbering; every entry point calls it first, and only the first call acts.

    The imports of a training make a million objects that live to the end. Looking for garbage among them after every
    700 new ones takes a sixth of the import's time, and once more at the exit two seconds (docs/decisions.md).
    """
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for GPUs must not fix which ones are seen
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # a number means the same card as in nvidia-smi
