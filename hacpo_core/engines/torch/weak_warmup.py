"""Training loop of WMSS's warm-up: entropies of both models once, then AdamW on logits mixed with the weak model's.

    rows ─both heads─▶ mean entropy of each example ─▶ weights ─▶ draws of all steps
                                                                    └─▶ rows ─passes─▶ fused loss ─▶ AdamW on the strong

Shapes: B example, N token.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from hacpo_core.algo.weak_warmup import example_weights, fused_cross_entropy
from hacpo_core.columns import TokenRows
from hacpo_core.config import OptimizerConfig, WeakWarmupConfig
from hacpo_core.engines.layouts import forward_passes
from hacpo_core.engines.scoring import ScoringHead, scoring_head
from hacpo_core.engines.torch.optimizer import adamw, learning_rate
from hacpo_core.errors import EngineError
from hacpo_core.seeds import generator

_CHUNK_MB = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WeakWarmupFigures:
    """Result of a warm-up: mean entropy of both models over examples (nats), loss of the first and last step (nats)."""

    strong_entropy: float
    weak_entropy: float
    first_loss: float
    last_loss: float


def train_against_weak(
    strong: PreTrainedModel,
    weak: PreTrainedModel,
    rows: TokenRows,
    config: WeakWarmupConfig,
    *,
    progress: Callable[[int, int, float], None] | None = None,
) -> WeakWarmupFigures:
    """Train the strong model in place. On one machine, the result is deterministic.

    The loss of a step is the mean over its solution tokens; an example that is drawn twice counts twice.

    Args:
        strong: fp32.
        weak: on the same device, with the same vocabulary; not changed.
        rows: prompts and solutions.
        config: the warm-up's.
        progress: called with (step, steps, loss).

    Raises:
        EngineError: a loss is not finite.
    """
    strong_head, weak_head = scoring_head(strong), scoring_head(weak)
    strong_B = _mean_entropies(strong_head, rows, max_tokens=config.micro_batch_tokens)
    weak_B = _mean_entropies(weak_head, rows, max_tokens=config.micro_batch_tokens)
    settings = OptimizerConfig(
        learning_rate=config.learning_rate, schedule="cosine", warmup_updates=config.num_steps // 10
    )
    parameters = [parameter for parameter in strong.parameters() if parameter.requires_grad]
    optimizer = adamw(parameters, settings)
    losses: list[float] = []
    weight_B = example_weights(
        strong_B, weak_B, gain=config.gain_weight, entropy=config.entropy_weight, loss=config.loss_weight
    )
    for step, drawn in enumerate(draws(weight_B.numpy(), config)):
        optimizer.zero_grad()
        loss = _accumulate(strong_head, weak_head, rows.take(drawn), config)
        if not math.isfinite(loss):
            raise EngineError(
                f"weak_warmup: the loss of step {step + 1} is {loss}, expected a finite one; lower "
                "weak_warmup.learning_rate"
            )
        clip_grad_norm_(parameters, settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, update=step, total_updates=config.num_steps)
        optimizer.step()
        losses.append(loss)
        if progress is not None:
            progress(step + 1, config.num_steps, loss)
    optimizer.zero_grad()
    return WeakWarmupFigures(float(strong_B.mean()), float(weak_B.mean()), losses[0], losses[-1])


def _accumulate(strong: ScoringHead, weak: ScoringHead, rows: TokenRows, config: WeakWarmupConfig) -> float:
    """Add the gradient of the rows' mean token loss to the strong model's; returns that loss."""
    num_tokens = len(rows.responses.value_N)
    total = 0.0
    for forward in forward_passes(rows, layout="padded", max_tokens=config.micro_batch_tokens):
        here = forward.to(strong.model.device)
        with torch.no_grad():
            weak_NV = weak.logits(here)
        loss = fused_cross_entropy(strong.logits(here), weak_NV, here.target_N, mix=config.mix).sum() / num_tokens
        loss.backward()
        total += float(loss.detach())
    return total


@torch.no_grad()
def _mean_entropies(head: ScoringHead, rows: TokenRows, *, max_tokens: int) -> Tensor:
    """entropy_B: mean entropy of the tokens of each response, float64, nats."""
    entropy_B = torch.zeros(len(rows), dtype=torch.float64)
    lengths_B = rows.responses.lengths
    for forward in forward_passes(rows, layout="padded", max_tokens=max_tokens):
        scores = head.scores(forward.to(head.model.device), temperature=1.0, chunk_mb=_CHUNK_MB)
        pieces = scores.entropy_N.double().cpu().split([int(lengths_B[row]) for row in forward.rows])
        for row, piece in zip(forward.rows, pieces, strict=True):
            entropy_B[row] = piece.mean()
    return entropy_B.clamp(min=0)  # rounding may make an entropy near 0 negative


def draws(weight_B: NDArray[np.float64], config: WeakWarmupConfig) -> NDArray[np.int64]:
    """Positions of the examples of each step, drawn with replacement in proportion to their weights.

    Args:
        weight_B: >= 0; if all are 0, draws are uniform, with a warning.
        config: number and size of the steps, and the seed.

    Returns:
        position_SB, S step.

    Raises:
        EngineError: a weight is not finite.
    """
    total = weight_B.sum()
    if not np.isfinite(total):
        raise EngineError("weak_warmup: an entropy is not finite, so one of the models is broken; save it again")
    if total == 0:
        _log.warning("weak_warmup: the weights of all examples are 0, so examples are drawn uniformly")
    share_B = weight_B / total if total > 0 else np.full(len(weight_B), 1 / len(weight_B))
    rng = generator(config.seed, "weak warm-up")
    return rng.choice(len(share_B), size=(config.num_steps, config.batch_size), p=share_B)
