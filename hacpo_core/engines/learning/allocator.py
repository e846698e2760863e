"""Settings of torch's CUDA allocator in the process of a learner.

With expandable segments, torch returns the free parts of its memory, which would otherwise be lost to fragmentation
when sequences of other lengths follow. vLLM's allocator, with which it sleeps, cannot use them in its processes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from hacpo_core.config import EngineConfig

VARIABLE, EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
_VARIABLES = (VARIABLE, "PYTORCH_ALLOC_CONF")


def use_expandable_segments(engine: EngineConfig) -> None:
    """Let torch use expandable segments, unless the user chose settings.

    Has no effect once CUDA has allocated memory in this process.
    """
    if engine.device != "cpu" and not _has_users_choice():
        os.environ[VARIABLE] = EXPANDABLE


@contextmanager
def plain_segments_in_children() -> Iterator[None]:
    """Keep the setting of `use_expandable_segments` from processes that are started in the block."""
    earlier_setting = None if _has_users_choice() else os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if earlier_setting is not None:
            os.environ[VARIABLE] = earlier_setting


def release_unused(device: torch.device) -> None:
    """Return the allocator's free blocks to the device, for other processes and engines."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@cache
def _has_users_choice() -> bool:
    """Whether the allocator's settings were chosen outside; the first call comes before this module's."""
    return any(name in os.environ for name in _VARIABLES)
