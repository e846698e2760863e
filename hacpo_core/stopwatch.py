"""Wall-clock and GPU time of a phase."""

from __future__ import annotations

import time

import torch

from hacpo_core.records import PhaseCost


class Stopwatch:
    """Measures the duration of a block of code, and the GPU-seconds of the GPUs that it uses."""

    def __init__(self, num_gpus: int = 0) -> None:
        self._num_gpus = num_gpus
        self._seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._num_gpus and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._seconds = time.perf_counter() - self._start

    def cost(self) -> PhaseCost:
        """Cost of the block."""
        return PhaseCost(self._seconds, self._seconds * self._num_gpus, 0)
