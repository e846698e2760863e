"""Learners of small models and mini-batches for them.

With `LINEAR` AdamW's epsilon lies far above the gradients and its step is proportional to the gradient: a comparison of
weights is then one of gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.learning.learner import BaseLearner
from hacpo_core.engines.learning.outcomes import MinibatchOutcome, UpdateOutcome
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.methods.objective import Objective, RowKind
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from tests.engines.small import VOCAB_SIZE, Request, Row, cross_row, minibatch, own_row, scored, small_model

HACPO = CrossClip(sequence_low=0.2, sequence_high=0.2, cross_floor=0.5)
GSPO = SequenceClip(sequence_low=0.2, sequence_high=0.2)
GRPO = TokenClip(token_low=0.2, token_high=0.2)
LINEAR = {"learning_rate": 100.0, "epsilon": 100.0, "weight_decay": 0.0, "max_grad_norm": 1e9}
SHAPES = ((2, 5), (3, 1), (1, 7), (4, 4), (2, 6), (3, 3), (1, 2), (2, 4))  # prompt and response tokens
ADVANTAGES = (1.0, -0.5, 2.0, 0.0, -1.5, 0.7, 0.0, 1.2)


def learner_of(
    model: PreTrainedModel,
    *,
    engine: EngineConfig | None = None,
    reference: PreTrainedModel | None = None,
    **optimizer: Any,
) -> TorchLearner:
    return TorchLearner(
        model,
        optimizer=OptimizerConfig(**optimizer),
        engine=engine or EngineConfig(),
        temperature=1.0,
        total_updates=20,
        reference=reference,
    )


def requests(seed: int = 0) -> list[Request]:
    random = torch.Generator().manual_seed(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (length,), generator=random).tolist())

    return [Request(ids(prompt), ids(response)) for prompt, response in SHAPES]


def rows_of(*, num_cross: int = 3, seed: int = 0, model: PreTrainedModel | None = None) -> list[Row]:
    """Eight rows, the last of them cross-agent; every ratio lies within its bounds, none is 1."""
    found = scored(learner_of(model or small_model()), requests(seed))
    rows = []
    for i, (request, logprobs) in enumerate(zip(requests(seed), found, strict=True)):
        if i < len(SHAPES) - num_cross:
            old = tuple(value + 0.01 * (i - 3) for value in logprobs)
            rows.append(own_row(request.prompt_ids, request.response_ids, ADVANTAGES[i], old_logprobs=old, index=i))
            continue
        mean = sum(logprobs) / len(logprobs) + 0.1
        row = cross_row(request.prompt_ids, request.response_ids, ADVANTAGES[i], old_mean_logprob=mean, index=i)
        rows.append(replace(row, source=1 + i % 2, cross_weight=0.5 + 0.25 * i))
    return rows


@dataclass(frozen=True)
class SeenRow:
    """What an update saw of one row."""

    index: int
    source: int
    is_own: bool
    update: int
    ratio: float
    floor: float
    ceiling: float
    stopped_share: float
    kl: float
    entropy: float


@dataclass(frozen=True)
class Seen:
    """An update's outcome in plain numbers, so that two can be compared."""

    minibatches: tuple[MinibatchOutcome, ...]
    rows: tuple[SeenRow, ...]


def seen(outcome: UpdateOutcome) -> Seen:
    """The outcome of an update in plain numbers."""
    found = outcome.rows
    names = ("ratio", "floor", "ceiling", "stopped_share", "kl", "entropy")
    numbers = zip(found.update_B.tolist(), *(found.figures[name].tolist() for name in names), strict=True)
    rows = [
        SeenRow(key.sample, int(key.agent), kind == RowKind.OWN, *values)
        for key, kind, values in zip(found.key_B, found.kind_B.tolist(), numbers, strict=True)
    ]
    return Seen(outcome.minibatches, tuple(rows))


def run(
    learner: BaseLearner,
    batches: Sequence[Sequence[Row]],
    method: Objective = HACPO,
    *,
    scores_own: bool = False,
    planned: range | None = None,
) -> Seen:
    outcome = learner.update(
        [minibatch(rows, method) for rows in batches], method, scores_own=scores_own, planned_updates=planned
    )
    return seen(outcome)


def optimizer_tensors(learner: BaseLearner) -> dict[str, Tensor]:
    return {part.name: part.read() for part in learner.optimizer_parts()}


def weights(model: PreTrainedModel) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def mean_logprob(model: PreTrainedModel, row: Row) -> float:
    (logprobs,) = scored(learner_of(model), [row])
    return sum(logprobs) / len(logprobs)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
