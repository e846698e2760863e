"""Other agents' responses as the rows that a learner would train on, and what the method's bounds make of them.

Shapes: R response, B row, T token, N token of all rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hacpo_core.columns import Ragged
from hacpo_core.config.counts import num_minibatches
from hacpo_core.data.batches import Minibatch, learner_minibatches
from hacpo_core.engines.passes.first_ratios import log_ratios_by_agent, with_log_centers
from hacpo_core.engines.passes.loss import loss_rows, padded
from hacpo_core.experiment import Experiment
from hacpo_core.methods.checks import checked_log_centers
from hacpo_core.methods.estimate import Estimate
from hacpo_core.methods.objective import Objective
from hacpo_core.phases.agent_at import agent_at, row_reader
from hacpo_core.responses import Responses

STEP = 1
"""number of the step that the probe stands for"""
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class PairProbe:
    """One agent's rows as another agent, the learner, would train on them.

    Attributes:
        learner, source: names.
        num_rows: rows, unscored and empty ones left out.
        ratios: sequence ratio at QUANTILES, as the bounds see it.
        floor, ceiling: bounds before the first update of a step.
        first_share: share of the rows with an advantage that the bounds let through before the first update.
        last_share: the same under the bounds of the step's last update, with these ratios.
        length_drift: mean relative change of the length by retokenisation.
        num_truncated, num_empty: as the metrics of these names.
        gradient_cosine: between the gradients of J_homo and J_hete on the learner's own rows and these (Theorem 4.3:
            positive); None if one of them is 0, or no rank has a whole gradient.
    """

    learner: str
    source: str
    num_rows: int
    ratios: tuple[float, ...]
    floor: float
    ceiling: float
    first_share: float
    last_share: float
    length_drift: float
    num_truncated: int
    num_empty: int
    gradient_cosine: float | None


def rows_of(
    experiment: Experiment, learner: str, sources: Sequence[str], responses: Mapping[str, Responses], estimate: Estimate
) -> tuple[Minibatch, dict[str, float]]:
    """The rows that a learner would train on of some agents' responses, built as in training, and metrics of that."""
    reader = row_reader(
        experiment, STEP, learner, responses=lambda _, agent: responses[agent], estimate=lambda _: estimate
    )
    keys = [key for source in sources for key in responses[source].row_keys()]
    limit = experiment.config.rollout.max_response_tokens
    objective = experiment.method.objective
    (minibatch,), figures = learner_minibatches(reader, [keys], objective, max_response_tokens=limit)
    return minibatch, figures


def pair_probe(
    experiment: Experiment,
    learner: str,
    source: str,
    minibatch: Minibatch,
    figures: Mapping[str, float],
    both: Minibatch,
    sampled: Responses,
) -> PairProbe:
    """The rows under the learner's initial weights and the method's bounds."""
    objective = experiment.method.objective
    counts: dict[str, Any] = {
        "length_drift": figures["text/length_drift"],
        "num_truncated": figures["text/num_truncated"],
        "num_empty": figures["text/num_empty"],
    }
    if not len(minibatch):
        nan = math.nan
        return PairProbe(
            learner, source, 0, (nan,) * len(QUANTILES), nan, nan, 0.0, 0.0, **counts, gradient_cosine=None
        )
    with agent_at(experiment, learner, 0) as (placed, _):
        logprobs = placed.score(_as_responses(minibatch, sampled))
        cosine = placed.gradient_cosine(both, objective)
    minibatch = centered(objective, minibatch, logprobs)
    first_ratios = bounded_ratios(objective, minibatch, logprobs, update=0)
    last_ratios = bounded_ratios(objective, minibatch, logprobs, update=max(0, num_minibatches(experiment.config) - 1))
    return PairProbe(
        learner=learner,
        source=source,
        num_rows=len(minibatch),
        ratios=tuple(np.quantile(first_ratios.ratio_B, QUANTILES).tolist()),
        floor=float(first_ratios.floor_B.max()),
        ceiling=float(first_ratios.ceiling_B.min()),
        first_share=first_ratios.passing_share,
        last_share=last_ratios.passing_share,
        **counts,
        gradient_cosine=cosine,
    )


def _as_responses(minibatch: Minibatch, sampled: Responses) -> Responses:
    """The rows of a mini-batch as responses in the learner's tokens; only their ids are meant."""
    positions, tokens = sampled.positions(), minibatch.tokens
    return replace(
        sampled.take([positions[key] for key in minibatch.keys]),
        prompt_ids=tokens.prompts.take(tokens.prompt_B),
        token_ids=tokens.responses,
        logprobs=Ragged(np.zeros(len(tokens.responses.value_N), np.float32), tokens.responses.edge),
        num_sampled_R=None,
    )


def centered(objective: Objective, minibatch: Minibatch, scored: Ragged) -> Minibatch:
    """One source's rows with what the objective subtracts from their log-ratios in its first step."""
    first_log_ratios = partial(log_ratios_by_agent, [minibatch], lambda tokens: scored)
    return with_log_centers(minibatch, checked_log_centers(objective, first_log_ratios, {})[0])


@dataclass(frozen=True, slots=True)
class BoundedRatios:
    """Ratios of rows as an objective bounds them; `passing_share` is of the rows with an advantage, if any have one."""

    ratio_B: NDArray[np.float64]
    floor_B: NDArray[np.float64]
    ceiling_B: NDArray[np.float64]
    passing_share: float


def bounded_ratios(objective: Objective, minibatch: Minibatch, scored: Ragged, *, update: int) -> BoundedRatios:
    """What an objective makes of rows before their update.

    Args:
        objective: the method's.
        minibatch: rows, at least one.
        scored: log-probabilities (nats) of their tokens under the learner.
        update: m, number of updates of the step before.
    """
    rows = loss_rows(minibatch, objective)
    logprob_BT = padded(torch.tensor(scored.value_N, dtype=torch.float64), rows.mask_BT)
    with torch.no_grad():
        surrogate = objective.surrogate(rows, logprob_BT, update=update)
    stopped_B, advantage_B = surrogate.stopped_share_B.double().numpy(), rows.weighted_advantage_B.numpy()
    counted_B = advantage_B != 0 if (advantage_B != 0).any() else np.ones(len(minibatch), bool)
    return BoundedRatios(
        ratio_B=surrogate.ratio_B.double().numpy(),
        floor_B=surrogate.floor_B.double().numpy(),
        ceiling_B=surrogate.ceiling_B.double().numpy(),
        passing_share=1.0 - float(stopped_B[counted_B].mean()),
    )
