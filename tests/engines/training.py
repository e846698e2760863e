"""Learners of small models and mini-batches for them.

With `LINEAR` AdamW's epsilon lies far above the gradients and its step is proportional to the gradient: a comparison of
weights is then one of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.algo.methods import Method
from hacpo_core.batches import Minibatch, Row
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.base import ScoreRequest, UpdateOutcome
from hacpo_core.engines.learner import BaseLearner
from hacpo_core.engines.torch_learner import TorchLearner
from tests.engines.small import VOCAB_SIZE, cross_row, own_row, small_model

HACPO = Method(name="hacpo", own_low=0.2, own_high=0.2, cross_floor=0.5)
GSPO = replace(HACPO, shares_rollouts=False, baseline="own")
GRPO = replace(GSPO, ratio="token")
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


def requests(seed: int = 0) -> list[ScoreRequest]:
    random = torch.Generator().manual_seed(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (length,), generator=random).tolist())

    return [ScoreRequest(ids(prompt), ids(response)) for prompt, response in SHAPES]


def rows_of(*, num_cross: int = 3, seed: int = 0, model: PreTrainedModel | None = None) -> list[Row]:
    """Eight rows, the last of them cross-agent; every ratio lies within its bounds, none is 1."""
    scored = learner_of(model or small_model()).logprobs(requests(seed))
    rows = []
    for i, (request, logprobs) in enumerate(zip(requests(seed), scored, strict=True)):
        if i < len(SHAPES) - num_cross:
            old = tuple(value + 0.01 * (i - 3) for value in logprobs)
            rows.append(own_row(request.prompt_ids, request.response_ids, ADVANTAGES[i], old_logprobs=old, index=i))
            continue
        mean = sum(logprobs) / len(logprobs) + 0.1
        row = cross_row(request.prompt_ids, request.response_ids, ADVANTAGES[i], old_mean_logprob=mean, index=i)
        rows.append(replace(row, source=1 + i % 2, cross_weight=0.5 + 0.25 * i))
    return rows


def run(
    learner: TorchLearner, batches: Sequence[Sequence[Row]], method: Method = HACPO, *, measures_cosine: bool = False
) -> UpdateOutcome:
    return learner.update(
        [Minibatch(tuple(rows)) for rows in batches],
        method,
        num_agents=3,
        max_response_tokens=8,
        measures_cosine=measures_cosine,
    )


def optimizer_tensors(learner: BaseLearner) -> dict[str, Tensor]:
    return {part.name: part.read() for part in learner.optimizer_parts()}


def weights(model: PreTrainedModel) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def mean_logprob(model: PreTrainedModel, row: Row) -> float:
    (logprobs,) = learner_of(model).logprobs([ScoreRequest(row.prompt_ids, row.response_ids)])
    return sum(logprobs) / len(logprobs)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
