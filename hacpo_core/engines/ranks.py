"""Exchange of Python values between the ranks of an agent."""

from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from hacpo_core.config import EngineConfig
from hacpo_core.config.engine import RANKS_LIMIT_S

_T = TypeVar("_T")


def join_ranks(meeting_point: str, rank: int, ranks: int, engine: EngineConfig) -> None:
    """Form the group of an agent's ranks."""
    backend, timeout = "gloo" if engine.device == "cpu" else "nccl", timedelta(seconds=RANKS_LIMIT_S)
    dist.init_process_group(backend, init_method=meeting_point, rank=rank, world_size=ranks, timeout=timeout)


def all_ranks(value: _T) -> list[_T]:
    """The values of all ranks, in order. All ranks must call this; they wait for each other."""
    values = [value] * (dist.get_world_size() if dist.is_initialized() else 1)
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values
