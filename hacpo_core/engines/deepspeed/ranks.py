"""How the ranks of an agent exchange Python values."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

_T = TypeVar("_T")


def all_ranks(value: _T) -> list[_T]:
    """The value of every rank, in their order; all ranks must call it, and wait here for each other."""
    values = [value] * (dist.get_world_size() if dist.is_initialized() else 1)
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def this_rank() -> int:
    """Number of this process among the ranks; 0 where there is no group."""
    return dist.get_rank() if dist.is_initialized() else 0
