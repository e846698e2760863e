"""Disk space of checkpoints: the weights, and of trained ones AdamW's moments and in bfloat16 the masters, in fp32."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.planning.memory import GIB, ModelShape, num_trained
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import keeps_optimizer
from hacpo_core.errors import CapacityError


@dataclass(frozen=True, slots=True)
class CheckpointSpace:
    """Space of one checkpoint of a run, of all of them while it trains, and once it is complete, in GiB."""

    one: float
    training: float
    complete: float


def checkpoint_space(config: ExperimentConfig, shapes: Mapping[str, ModelShape]) -> CheckpointSpace:
    """The most that a run's checkpoints take; an agent without a shape counts as nothing."""
    is_bf16, kept = config.engine.dtype != "float32", config.checkpoint
    weights = sum(shape.num_parameters for shape in shapes.values()) * (2 if is_bf16 else 4) / GIB
    one = weights + sum(num_trained(config, shape) for shape in shapes.values()) * (12 if is_bf16 else 8) / GIB
    number = kept.keep + (kept.keep_best.num if kept.keep_best.metric is not None else 0)
    # A new checkpoint is complete before the oldest is removed.
    return CheckpointSpace(one, (number + 1) * one, number * (one if keeps_optimizer(config) else weights))


def check_space(config: ExperimentConfig, shapes: Mapping[str, ModelShape], root: Path) -> None:
    """Raise a CapacityError if the disk of an experiment's folder has no room for its next checkpoints."""
    space, free = checkpoint_space(config, shapes), shutil.disk_usage(root).free / GIB
    needed = space.one if (root / "checkpoints").is_dir() else space.training
    if needed > free:
        raise CapacityError(
            f"{root}: its checkpoints need {needed:.2f} GiB more, but the disk has {free:.2f}; free some space, or set "
            "runtime.runs_dir to a folder of another disk"
        )
