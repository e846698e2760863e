"""The C library's memory allocator, told to keep what is freed: tensors of a step have the sizes of the last one."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGE = 2**31 - 1


def keep_freed_memory() -> bool:
    """Serve large blocks from the heap and never give its end back, in place of a fresh mapping for each.

    A fresh mapping costs a page fault for every 4 KiB that a tensor touches, at every allocation. Peak memory stays;
    what a process has once used it keeps.

    Returns:
        whether this C library took it: False on one that is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, _LARGE) for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
