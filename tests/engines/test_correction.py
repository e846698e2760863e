"""The weight for what the sampler differs from the learner in, as an update applies it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.planning.compose import compose
from hacpo_core.config import EngineConfig
from hacpo_core.errors import ConfigError
from hacpo_core.methods.objective import Objective
from tests.engines.small import Row, minibatch, small_model
from tests.engines.training import GRPO, HACPO, LINEAR, learner_of, rows_of, weights

SHIFT = 0.25
"""nats by which the sampler of a test overrates each token"""


def shifted_rows() -> list[Row]:
    """Rows whose sampler gave every token of an own response more than the learner's old policy does."""
    rows = rows_of()
    return [
        replace(row, sampler_logprobs=tuple(value + SHIFT for value in row.old_logprobs)) if row.old_logprobs else row
        for row in rows
    ]


def applied(objective: Objective, rows: list[Row]) -> tuple[torch.Tensor, np.ndarray]:
    """Change of the weights by one update, and the weight of each row."""
    model = small_model()
    before = weights(model)
    learner = learner_of(model, engine=EngineConfig(skip_zero_advantage=False, micro_batch_tokens=20), **LINEAR)
    found = learner.update([minibatch(rows, objective)], objective).rows
    return weights(model) - before, found.figures["correction"][np.argsort([key.sample for key in found.key_B])]


@pytest.mark.parametrize(("correction", "limit"), [("truncate", 0.5), ("mask", 0.5), ("mask", 3.0)])
def test_own_rows_are_weighed_by_the_product_over_their_tokens_and_others_are_not(
    correction: str, limit: float
) -> None:
    rows = shifted_rows()
    change, weight_B = applied(replace(HACPO, correction=correction, correction_limit=limit), rows)
    raw = [math.exp(-SHIFT * len(row.response_ids)) if row.is_own else 1.0 for row in rows]
    within = {"truncate": lambda w: min(w, limit), "mask": lambda w: w if w <= limit else 0.0}[correction]
    expected = [within(w) if row.is_own else 1.0 for w, row in zip(raw, rows, strict=True)]
    assert weight_B.tolist() == pytest.approx(expected, rel=1e-5)
    # the same as advantages that are multiplied by hand
    by_hand = [replace(row, advantage=row.advantage * w) for row, w in zip(rows, expected, strict=True)]
    torch.testing.assert_close(change, applied(HACPO, by_hand)[0], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(change, applied(HACPO, rows)[0], rtol=1e-3, atol=1e-6)


def test_token_weights_are_those_of_each_token() -> None:
    rows = shifted_rows()[:5]
    method = replace(GRPO, correction="truncate", correction_level="token")
    change, weight_B = applied(method, rows)
    assert weight_B.tolist() == pytest.approx([math.exp(-SHIFT)] * 5, rel=1e-5)
    by_hand = [replace(row, advantage=row.advantage * math.exp(-SHIFT)) for row in rows]
    torch.testing.assert_close(change, applied(GRPO, by_hand)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("old_logprobs=sampler",), "with old_logprobs=sampler, which uses the sampler's"),
        (("method.objective.correction_level=token",), "token with cross_clip, which has no terms per token"),
    ],
)
def test_correction_that_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("tiny", "hacpo", overrides=["method.objective.correction=mask", *words])


def test_presets_leave_the_correction_off() -> None:
    for preset in ("paper", "official"):
        assert compose("tiny", "hacpo", overrides=[f"conformance={preset}"]).method.objective.correction == "none"
