"""Memory of the CPU: what glibc does with a large block that is freed."""

from __future__ import annotations

import ctypes
import os

KEPT = 2**31 - 1
"""bytes of one block, and of free memory at the heap's end, up to which it is kept: the most that can be asked for"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
_TUNABLES = ("malloc.trim_threshold", "malloc.mmap_threshold", "malloc.mmap_max", "malloc.top_pad")


def keep_freed_memory() -> bool:
    """Have this process keep blocks of up to `KEPT` bytes that it frees, for its next ones (docs/decisions.md).

    By default glibc gives every block of more than 32 MiB back at once. The next tensor of that size then costs a page
    fault for each 4 KiB of it: with 151,936 words in the vocabulary a third of an update and more.

    Returns:
        False where it cannot be asked for, and where the environment decides: `MALLOC_MMAP_THRESHOLD_`, its like, or
        the same as `GLIBC_TUNABLES`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is None or not os.environ.keys().isdisjoint(_VARIABLES) or any(name in tunables for name in _TUNABLES):
        return False
    # An older glibc refuses the first; the second alone would have every block of 128 KiB given back.
    return bool(mallopt(_M_MMAP_THRESHOLD, KEPT)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT))
