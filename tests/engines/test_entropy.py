"""Updates with an entropy bonus, and updates of the tokens with the highest entropy.

Shapes: T token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from flows.planning.compose import compose
from hacpo_core.config import EngineConfig
from hacpo_core.engines.learning.outcomes import UpdateOutcome
from hacpo_core.errors import ConfigError
from hacpo_core.methods.base import Objective, State
from tests.engines.small import Row, minibatch, small_model, token_rows
from tests.engines.training import GRPO, GSPO, HACPO, LINEAR, assert_close, learner_of, rows_of, run, weights

SLOW = {**LINEAR, "epsilon": 1e4, "learning_rate": 1e4}
"""the change of the weights is the gradient"""


def entropies(model: torch.nn.Module, row: Row) -> Tensor:
    """entropy_T of a row's response, from its whole logits."""
    ids = torch.tensor([row.prompt_ids + row.response_ids])
    logprob_TV = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(dim=1)
    entropy_T: Tensor = -(logprob_TV.exp() * logprob_TV).sum(dim=1)
    return entropy_T


def outcome_of(
    batches: Sequence[Sequence[Row]], method: Objective, state: State | None = None, num_before: int = 0
) -> UpdateOutcome:
    learner = learner_of(small_model(), learning_rate=1e-3)
    if num_before:
        run(learner, batches[:num_before], method)
    return learner.update(
        [minibatch(rows, method) for rows in batches[num_before:]], method, measures_cosine=False, objective_state=state
    )


@pytest.mark.parametrize("method", [HACPO, GRPO])
def test_bonus_adds_the_gradient_of_the_mean_entropy_of_own_tokens(method: Objective) -> None:
    rows = [replace(row, advantage=0.0) for row in rows_of(num_cross=3 if method is HACPO else 0)]
    model = small_model()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own = [entropies(model, row) for row in rows if row.is_own]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(0.5 * torch.cat(own).mean(), parameters)])
    before = weights(model)
    found = run(learner_of(model, **SLOW), [rows], replace(method, entropy_coef=0.5))
    torch.testing.assert_close(weights(model) - before, expected, rtol=1e-3, atol=1e-5)
    assert expected.abs().max() > 1e-2
    assert found.minibatches[0].own_objective == pytest.approx(0.5 * torch.cat(own).mean().item(), rel=1e-5)
    assert found.minibatches[0].num_skipped == sum(not row.is_own for row in rows), "own rows have a gradient"
    assert found.minibatches[0].entropy_coef == 0.5


@pytest.mark.parametrize(
    "method", [replace(HACPO, entropy_coef=0.1), replace(GRPO, entropy_coef=0.1, top_entropy_share=0.4)]
)
def test_micro_batching_changes_neither_bonus_nor_chosen_tokens(method: Objective) -> None:
    rows, results = rows_of(num_cross=0), []
    for micro_batch_tokens in (16384, 20, 1):
        model = small_model()
        learner = learner_of(model, engine=EngineConfig(micro_batch_tokens=micro_batch_tokens), **LINEAR)
        run(learner, [rows], method)
        results.append(weights(model))
    for found in results[1:]:
        assert_close(found, results[0])
    assert (results[0] - weights(small_model())).abs().max() > 1e-2


def test_weight_above_its_maximum_is_refused() -> None:
    words = ["method.objective.entropy_target=0.3", "method.objective.entropy_coef=2"]
    with pytest.raises(ConfigError, match=r"entropy_coef: got 2 with method.objective.max_entropy_coef=1, expected at"):
        compose("tiny", "grpo", overrides=words)


def test_weight_of_the_bonus_follows_the_entropy_from_update_to_update() -> None:
    batches = [rows_of(seed=seed) for seed in range(3)]
    low = replace(HACPO, entropy_coef=0.01, entropy_target=100.0, entropy_step=0.004, max_entropy_coef=0.015)
    found = outcome_of(batches, low)
    assert [m.entropy_coef for m in found.minibatches] == pytest.approx([0.0, 0.014, 0.015]), (
        "none before a measurement"
    )
    assert found.objective_state["entropy control"]["coefficient"] == 0.015
    high = replace(low, entropy_target=0.0)
    found = outcome_of(batches, high)
    assert [m.entropy_coef for m in found.minibatches] == [0.0, 0.0, 0.0], "0 while the entropy is above the target"
    assert found.objective_state["entropy control"]["coefficient"] == 0.0  # 0.01, 0.006, 0.002, 0
    own_tokens = [(row.is_own, len(row.response_ids)) for row in batches[2]]
    rows = found.rows
    at_last = np.flatnonzero(rows.update_B == 2)
    weight_B = np.array([own_tokens[row][0] * own_tokens[row][1] for row in rows.row_B[at_last]])
    mean = (weight_B * rows.figures["entropy"][at_last]).sum() / weight_B.sum()
    assert found.objective_state["entropy control"]["entropy"] == pytest.approx(mean, rel=1e-12)


def test_bonus_continues_from_the_state_of_the_step_before() -> None:
    batches = [rows_of(seed=seed) for seed in range(4)]
    method = replace(HACPO, entropy_coef=0.01, entropy_target=100.0)
    whole = outcome_of(batches, method)
    state = outcome_of(batches[:2], method).objective_state
    rest = outcome_of(batches, method, state, num_before=2)
    assert [m.entropy_coef for m in rest.minibatches] == [m.entropy_coef for m in whole.minibatches[2:]]
    assert rest.objective_state == whole.objective_state
    assert outcome_of(batches[:1], HACPO).objective_state == {}


def test_entropy_rises_with_a_bonus() -> None:
    rows = [replace(row, advantage=0.0) for row in rows_of(num_cross=0)]
    model = small_model()
    before = torch.cat([entropies(model, row) for row in rows]).mean()
    run(learner_of(model, learning_rate=3e-3), [rows] * 4, replace(GSPO, entropy_coef=1.0))
    assert torch.cat([entropies(model, row) for row in rows]).mean() > before + 0.05


def test_only_tokens_with_the_highest_entropy_train() -> None:
    rows = rows_of(num_cross=0)
    entropy = learner_of(small_model()).entropies(token_rows(rows))
    for row, found in zip(rows, entropy, strict=True):
        np.testing.assert_allclose(found, entropies(small_model(), row).detach().numpy(), rtol=1e-4, atol=1e-5)
    threshold = np.quantile(entropy.value_N.astype(float), 0.7)

    def change(method: Objective, batch: Sequence[Row]) -> Tensor:
        model = small_model()
        run(learner_of(model, **LINEAR), [batch], method)
        return weights(model) - weights(small_model())

    chosen = [
        replace(row, advantage=0.0, teacher_advantages=tuple(row.advantage * (found >= threshold)))
        for row, found in zip(rows, entropy, strict=True)
    ]
    found = change(replace(GRPO, top_entropy_share=0.3), rows)
    assert_close(found, change(GRPO, chosen))
    assert (found - change(GRPO, rows)).abs().max() > 1e-3
    share = outcome_of([rows], replace(GRPO, top_entropy_share=0.3)).rows.figures["high_entropy_share"]
    lengths = np.array([len(row.response_ids) for row in rows])
    of_row = np.array([(found >= threshold).mean() for found in entropy])
    passed = np.flatnonzero([row.advantage != 0.0 for row in rows])
    assert sorted(share) == pytest.approx(sorted(of_row[passed]))
    assert (of_row * lengths).sum() == np.ceil(0.3 * (lengths.sum() - 1))


def test_objective_without_terms_per_token_chooses_none() -> None:
    results = []
    for method in (GSPO, replace(GSPO, top_entropy_share=0.3)):  # inert, see its declaration
        model = small_model()
        run(learner_of(model, **LINEAR), [rows_of(num_cross=0)], method)
        results.append(weights(model))
    assert torch.equal(*results)
