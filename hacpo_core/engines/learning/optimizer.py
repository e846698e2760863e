"""AdamW and its learning rate schedule."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hacpo_core.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, *, update: int, total_updates: int, position: float | None = None) -> float:
    """Learning rate of an update.

        peak * (update + 1) / warmup                                     while update < warmup
        peak                                                             constant
        peak * (1 + cos(pi (position - warmup) / (total - warmup))) / 2  cosine

    Args:
        config: the optimizer's.
        update: 0-based, over the whole run.
        total_updates: planned for the whole run.
        position: of the update among the planned ones; None: `update`, no step had more or fewer updates than planned.
    """
    if update < config.warmup_updates:
        return config.learning_rate * (update + 1) / config.warmup_updates
    if config.schedule == "constant":
        return config.learning_rate
    at = update if position is None else position
    progress = (at - config.warmup_updates) / max(1, total_updates - config.warmup_updates)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * max(0.0, min(1.0, progress))))


def adamw(parameters: Sequence[Tensor], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with the configured settings."""
    return torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )
