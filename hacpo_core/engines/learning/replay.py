"""Comparison of an update that is repeated from the same rollouts with the original one.

On a CPU, the result is bitwise equal. On a GPU, on another machine or with another number of ranks, it is only close,
because sums are computed in a different order.
"""

import math
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from hacpo_core.config.replays import NEAR_SHARE
from hacpo_core.engines.learning.weights import Fingerprint


@dataclass(frozen=True, slots=True)
class Setup:
    """What determines the last bits of an update, apart from its rows and configuration."""

    device: str
    num_ranks: int
    num_threads: int
    torch: str
    is_exact: bool
    """whether the device is deterministic: the CPU, and CUDA with `engine.deterministic`"""
    layout: str = ""
    """of the passes, see `row_layout`; "" if it was not recorded yet"""


@dataclass(frozen=True, slots=True)
class UpdateTrace:
    """Fingerprints of the weights before and after an agent's updates of one step, and where these were computed."""

    before: Fingerprint
    after: Fingerprint
    setup: Setup

    @property
    def digest(self) -> str:
        """Of the weights after the updates."""
        return self.after.digest


@dataclass(frozen=True, slots=True)
class Replay:
    """A repeated update; `distance` is its difference from the recorded update, as a share of that update's norm."""

    kind: Literal["exact", "near", "different"]
    distance: float
    digest: str


def this_setup(device: torch.device, *, is_deterministic: bool, layout: str) -> Setup:
    """Setup in which this process computes its updates.

    Args:
        device: of the learner.
        is_deterministic: `engine.deterministic`.
        layout: of the learner's passes.
    """
    is_cpu = device.type == "cpu"
    return Setup(
        device=_processor() if is_cpu else torch.cuda.get_device_name(device),
        num_ranks=dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1,
        num_threads=torch.get_num_threads() if is_cpu else 0,
        torch=torch.__version__,
        is_exact=is_cpu or is_deterministic,
        layout=layout,
    )


@cache
def _processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def compare(recorded_trace: UpdateTrace, repeated_trace: UpdateTrace) -> Replay:
    """Compare a repeated update with the recorded one.

        exact      the digests of the weights after it are equal
        near       |d' - d| <= NEAR_SHARE |d|,   d = projections after - projections before;
                   only if bits may differ: in another setup, or on a device that is not exact
        different  anything else

    Updates are compared rather than weights, because after a replay that was only near, the next one starts from
    different weights.
    """
    recorded_step = _difference(recorded_trace.before, recorded_trace.after)
    repeated_step = _difference(repeated_trace.before, repeated_trace.after)
    length, step_distance = math.hypot(*recorded_step), math.dist(recorded_step, repeated_step)
    distance = step_distance / length if length > 0 else (0.0 if step_distance == 0 else math.inf)
    if recorded_trace.digest == repeated_trace.digest:
        return Replay("exact", distance, repeated_trace.digest)
    may_differ = recorded_trace.setup != repeated_trace.setup or not repeated_trace.setup.is_exact
    return Replay("near" if may_differ and distance <= NEAR_SHARE else "different", distance, repeated_trace.digest)


def _difference(before: Fingerprint, after: Fingerprint) -> list[float]:
    return [new - old for old, new in zip(before.projections, after.projections, strict=True)]
