"""Training loop of a warm-up: AdamW on worked solutions, alone or on logits mixed with a weaker checkpoint's (WMSS).

    rows ─▶ mini-batch ─passes─▶ loss ─▶ AdamW     sft: every epoch shuffled anew
                                                    weak_driven: examples drawn by entropies of both models

Shapes: B example, N token, S step, V vocabulary.
"""

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from hacpo_core.algo.weak_driven import example_weights, fused_cross_entropy
from hacpo_core.columns import TokenRows
from hacpo_core.config import OptimizerConfig, WarmUpConfig
from hacpo_core.engines.learning.optimizer import adamw, learning_rate
from hacpo_core.engines.passes.layouts import forward_passes
from hacpo_core.engines.passes.scoring import ScoringHead, scoring_head
from hacpo_core.errors import EngineError
from hacpo_core.records import WarmUpProgress
from hacpo_core.seeds import generator

MICRO_BATCH_TOKENS = 8192
"""most tokens, padding included, in one forward and backward pass"""
MIX = 0.5
"""lambda of WMSS: share of the model's own logits in the mixed logits"""
GAIN_WEIGHT, ENTROPY_WEIGHT, LOSS_WEIGHT = 0.2, 0.5, 0.3
"""alpha, beta, gamma of WMSS: an example is drawn in proportion to alpha [-dH]+ + beta H + gamma [dH]+, H the mean
entropy of its solution's tokens, dH the increase in H since the weak checkpoint"""
_CHUNK_MB = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WarmUpFigures:
    """Result of a warm-up: loss of the first and the last step (nats), and with a weak model the mean entropy of both
    models over examples (nats).
    """

    first_loss: float
    last_loss: float
    strong_entropy: float | None = None
    weak_entropy: float | None = None


def train(
    model: PreTrainedModel,
    rows: TokenRows,
    config: WarmUpConfig,
    *,
    weak: PreTrainedModel | None = None,
    progress: WarmUpProgress | None = None,
) -> WarmUpFigures:
    """Train a model in place. On one machine, the result depends only on the arguments and the number of threads.

    The loss of a step is the mean over its solution tokens; an example that is drawn twice counts twice.

    Args:
        model: fp32.
        rows: prompts and solutions.
        config: its declaration.
        weak: weak checkpoint for kind weak_driven, on the same device, with the same vocabulary; not changed.
        progress: called after each step.

    Raises:
        EngineError: a loss is not finite.
    """
    head, weak_head = scoring_head(model), None if weak is None else scoring_head(weak)
    entropies: tuple[float, float] | tuple[()] = ()
    if weak_head is None:
        order_SB = shuffled_epochs(len(rows), config)
    else:
        strong_B, weak_B = (_mean_entropies(scorer, rows) for scorer in (head, weak_head))
        weight_B = example_weights(strong_B, weak_B, gain=GAIN_WEIGHT, entropy=ENTROPY_WEIGHT, loss=LOSS_WEIGHT)
        order_SB, entropies = draws(weight_B.numpy(), config), (float(strong_B.mean()), float(weak_B.mean()))
    warmup_updates = config.num_steps // 10
    settings = OptimizerConfig(learning_rate=config.learning_rate, schedule="cosine", warmup_updates=warmup_updates)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = adamw(list(trained.values()), settings)
    losses: list[float] = []
    for step in range(config.num_steps):
        optimizer.zero_grad()
        loss = _accumulate(head, weak_head, rows.take(order_SB[step]), config)
        if not math.isfinite(loss):
            raise EngineError(
                f"warm_up: the loss of step {step + 1} is {loss}, expected a finite one; lower warm_up.learning_rate"
            )
        clip_grad_norm_(trained.values(), settings.max_grad_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(settings, update=step, total_updates=config.num_steps)
        optimizer.step()
        losses.append(loss)
        if progress is not None:
            progress(step + 1, config.num_steps, loss)
    optimizer.zero_grad()
    return WarmUpFigures(losses[0], losses[-1], *entropies)


def _accumulate(head: ScoringHead, weak: ScoringHead | None, rows: TokenRows, config: WarmUpConfig) -> float:
    """Add the gradient of the rows' mean token loss to the model's; returns that loss."""
    num_tokens = len(rows.responses.value_N)
    total = 0.0
    for forward in forward_passes(rows, layout="padded", max_tokens=MICRO_BATCH_TOKENS):
        here = forward.to(head.model.device)
        logits_NV = head.logits(here)
        if weak is None:
            loss_N = torch.nn.functional.cross_entropy(logits_NV, here.target_N, reduction="none")
        else:
            with torch.no_grad():
                weak_NV = weak.logits(here)
            loss_N = fused_cross_entropy(logits_NV, weak_NV, here.target_N, mix=MIX)
        loss = loss_N.sum() / num_tokens
        loss.backward()
        total += float(loss.detach())
    return total


@torch.no_grad()
def _mean_entropies(head: ScoringHead, rows: TokenRows) -> Tensor:
    """entropy_B: mean entropy of the tokens of each response, float64, nats."""
    entropy_B = torch.zeros(len(rows), dtype=torch.float64)
    lengths_B = rows.responses.lengths
    for forward in forward_passes(rows, layout="padded", max_tokens=MICRO_BATCH_TOKENS):
        scores = head.scores(forward.to(head.model.device), temperature=1.0, chunk_mb=_CHUNK_MB)
        pieces = scores.entropy_N.double().cpu().split([int(lengths_B[row]) for row in forward.rows])
        for row, piece in zip(forward.rows, pieces, strict=True):
            entropy_B[row] = piece.mean()
    return entropy_B.clamp(min=0)  # rounding may make an entropy near 0 negative


def shuffled_epochs(num_examples: int, config: WarmUpConfig) -> NDArray[np.int64]:
    """Positions of the examples of each step: all examples in a shuffled order, then all again in another one.

    Returns:
        position_SB, S step.
    """
    num_drawn = config.num_steps * config.batch_size
    epochs = range(-(-num_drawn // num_examples))
    orders = [generator(config.seed, "warm-up", epoch).permutation(num_examples) for epoch in epochs]
    return np.concatenate(orders)[:num_drawn].reshape(config.num_steps, config.batch_size)


def draws(weight_B: NDArray[np.float64], config: WarmUpConfig) -> NDArray[np.int64]:
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
        raise EngineError("warm_up: an entropy is not finite, so one of the models is broken; save it again")
    if total == 0:
        _log.warning("warm_up: the weights of all examples are 0, so examples are drawn uniformly")
    share_B = weight_B / total if total > 0 else np.full(len(weight_B), 1 / len(weight_B))
    rng = generator(config.seed, "weak warm-up")
    return rng.choice(len(share_B), size=(config.num_steps, config.batch_size), p=share_B)
