"""How long a phase took, and how much of a GPU."""

from __future__ import annotations

import time

import torch

from hacpo_core.ledger import PhaseCost


class Stopwatch:
    """Seconds of a block of code; on a GPU they count as GPU-seconds too."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device.startswith("cuda")
        self._seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()
        self._seconds = time.perf_counter() - self._start

    def cost(self, num_tokens: int = 0) -> PhaseCost:
        """What the block cost."""
        return PhaseCost(self._seconds, self._seconds if self._is_cuda else 0.0, num_tokens)
