"""One update: what it teaches, what must not change it, and what it reports.

Shapes: V vocabulary, T token.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hacpo_core.config import EngineConfig
from hacpo_core.methods.objective import Objective
from hacpo_core.methods.objectives.cispo import Cispo
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.sapo import Sapo
from tests.engines.small import FAMILIES, cross_row, logprobs_of, minibatch, scored, small_model
from tests.engines.training import (
    GRPO,
    GSPO,
    HACPO,
    LINEAR,
    assert_close,
    learner_of,
    mean_logprob,
    requests,
    rows_of,
    run,
    weights,
)


@pytest.mark.parametrize("method", [HACPO, replace(HACPO, aggregation="mean_of_rows"), GSPO, GRPO])
def test_micro_batching_does_not_change_the_update(method: Objective) -> None:
    results = []
    for micro_batch_tokens in (16384, 20, 1):
        model = small_model()
        rows = rows_of(num_cross=3 if isinstance(method, CrossClip) else 0)
        learner = learner_of(model, engine=EngineConfig(micro_batch_tokens=micro_batch_tokens), **LINEAR)
        outcome = run(learner, [rows], method)
        results.append((weights(model), outcome.minibatches[0]))
    before = weights(small_model())
    for found, outcome in results[1:]:
        assert_close(found, results[0][0])
        assert outcome.grad_norm == pytest.approx(results[0][1].grad_norm, rel=1e-5)
        assert outcome.own_objective == pytest.approx(results[0][1].own_objective, abs=1e-6)
        assert outcome.cross_objective == pytest.approx(results[0][1].cross_objective, abs=1e-6)
    assert (results[0][0] - before).abs().max() > 1e-2


def test_objective_of_others_rows_is_logged_as_zero_where_none_has_a_gradient() -> None:
    live, stopped = (
        run(learner_of(small_model()), [rows_of()], replace(HACPO, cross_floor=floor)).minibatches[0]
        for floor in (0.5, 1.0)
    )
    assert live.cross_objective != 0.0
    assert stopped.cross_objective == 0.0
    assert live.own_objective == stopped.own_objective


@pytest.mark.parametrize("method", [GRPO, Cispo(), Sapo()])
def test_token_advantages_add_to_that_of_the_row(method: Objective) -> None:
    rows = rows_of(num_cross=0)

    def change(advantage: float, *added: float) -> Tensor:
        """By one update whose rows carry an advantage, and on their tokens, in turn, these ones."""
        model = small_model()
        batch = [
            replace(
                row,
                advantage=advantage,
                teacher_advantages=tuple(added[t % len(added)] for t in range(len(row.response_ids))) if added else (),
            )
            for row in rows
        ]
        run(learner_of(model, **LINEAR), [batch], method)
        return weights(model) - weights(small_model())

    assert_close(change(0.0, 0.7), change(0.7))
    assert_close(change(0.3, 0.4), change(0.7))
    assert_close(change(0.0, 0.7, 0.2), change(0.5, 0.2, -0.3))
    assert (change(0.0, 0.7, 0.2) - change(0.45)).abs().max() > 1e-3, "tokens differ"


def test_shares_of_two_ranks_add_up_to_the_whole_gradient() -> None:
    rows = rows_of()
    whole_batch = minibatch(rows, HACPO)

    def gradient(part: slice) -> Tensor:
        model = small_model()
        learner_of(model).passes(whole_batch.take(range(len(rows))[part]), HACPO, 0)
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    whole = gradient(slice(None))
    assert_close(gradient(slice(3)) + gradient(slice(3, None)), whole)
    assert_close(gradient(slice(None, None, 2)) + gradient(slice(1, None, 2)), whole)
    assert whole.abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_update_follows_the_gradient_of_the_objective(family: str) -> None:
    model = small_model(family)
    rows = rows_of(model=model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    terms = {0: [], 1: [], 2: []}  # type: dict[int, list[Tensor]]
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.response_ids])
        logprob_TV = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(dim=1)
        mean = logprob_TV[range(len(row.response_ids)), list(row.response_ids)].mean()
        s = (mean - row.old_mean_logprob).exp()
        scale = 1.0 if row.is_own else s.detach() * row.cross_weight
        terms[row.source].append(s * scale * row.advantage)
    total = torch.stack([torch.stack(values).mean() for values in terms.values()]).sum()
    expected = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(total, parameters)])
    before = weights(model)
    run(learner_of(model, **{**LINEAR, "epsilon": 1e4, "learning_rate": 1e4}), [rows])
    # AdamW's first step is g / (|g| + epsilon)
    torch.testing.assert_close(weights(model) - before, expected, rtol=1e-3, atol=1e-5)
    assert expected.abs().max() > 1e-2


def test_skipping_rows_without_advantage_gives_the_same_update() -> None:
    results = []
    for skips in (True, False):
        model = small_model()
        outcome = run(learner_of(model, engine=EngineConfig(skip_zero_advantage=skips), **LINEAR), [rows_of()])
        results.append((weights(model), outcome))
    assert_close(results[0][0], results[1][0])
    assert [outcome.minibatches[0].num_skipped for _, outcome in results] == [2, 0]
    assert [outcome.minibatches[0].num_rows for _, outcome in results] == [8, 8]
    assert [len(outcome.rows) for _, outcome in results] == [6, 8]
    assert [outcome.minibatches[0].num_trained_tokens for _, outcome in results] == [26, 32]


def test_rows_without_advantage_are_not_skipped_while_a_kl_pulls_them() -> None:
    model = small_model()
    rows = [replace(row, advantage=0.0) for row in rows_of()]
    learner = learner_of(model, reference=small_model(seed=1), **LINEAR)
    outcome = run(learner, [rows], replace(HACPO, kl_coef=0.1))
    assert outcome.minibatches[0].num_skipped == 3  # the cross-agent rows
    assert outcome.minibatches[0].grad_norm > 0.0
    assert outcome.minibatches[0].own_objective < 0.0
    assert all(row.kl > 0.0 for row in outcome.rows)


def test_kl_update_moves_towards_the_reference() -> None:
    model, reference = small_model(), small_model(seed=1)
    rows = [replace(row, advantage=0.0) for row in rows_of(num_cross=0)]
    learner = learner_of(model, reference=reference, learning_rate=3e-3)
    outcome = run(learner, [rows] * 8, replace(GSPO, kl_coef=1.0))
    values = [m.own_objective for m in outcome.minibatches]
    assert values[-1] > 0.8 * values[0]


def test_update_without_any_advantage_decays_the_weights_alone() -> None:
    model = small_model()
    before = weights(model)
    rows = [replace(row, advantage=0.0) for row in rows_of()]
    outcome = run(learner_of(model, learning_rate=0.1, weight_decay=0.5), [rows])
    assert outcome.minibatches[0].grad_norm == 0.0
    assert_close(weights(model), before * 0.95)


@pytest.mark.parametrize("method", [GSPO, GRPO, HACPO], ids=["gspo", "grpo", "hacpo"])
@pytest.mark.parametrize("family", FAMILIES)
def test_update_makes_good_responses_likelier_and_bad_ones_less_likely(method: Objective, family: str) -> None:
    model = small_model(family)
    num_cross = 3 if isinstance(method, CrossClip) else 0
    for row in rows_of(num_cross=num_cross, model=model):
        if row.advantage == 0.0:
            continue
        trained = small_model(family)
        before = mean_logprob(trained, row)
        run(learner_of(trained, learning_rate=1e-3), [[row]], method)
        assert (mean_logprob(trained, row) > before) is (row.advantage > 0.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_cross_response_likelier_than_at_its_source_teaches_nothing(advantage: float) -> None:
    model = small_model()
    request = requests()[0]
    current = sum(scored(learner_of(model), [request])[0]) / len(request.response_ids)
    row = cross_row(request.prompt_ids, request.response_ids, advantage, old_mean_logprob=current - 0.01)
    outcome = run(learner_of(model), [[row]])
    assert outcome.minibatches[0].grad_norm == 0.0
    assert outcome.rows[0].stopped_share == 1.0
    assert outcome.rows[0].ratio == pytest.approx(math.exp(0.01), rel=1e-5)


def test_outcome_names_the_bounds_of_each_update() -> None:
    method = replace(HACPO, cross_floor=0.8, cross_step=0.15)
    outcome = run(learner_of(small_model(), learning_rate=1e-6), [rows_of()] * 3, method)
    for row in outcome.rows:
        cross = (min(1.0, 0.8 + 0.15 * row.update), 1.0)
        assert (row.floor, row.ceiling) == pytest.approx((0.8, 1.2) if row.is_own else cross)
    assert {row.update for row in outcome.rows} == {0, 1, 2}
    own = {row.index: row for row in outcome.rows if row.is_own and row.update == 0}
    assert own[0].ratio == pytest.approx(math.exp(0.03), rel=1e-5)
    # ratios of exp(-0.1): within 0.8, below 0.95
    assert [row.stopped_share for row in outcome.rows if not row.is_own and row.update < 2] == [0.0, 0.0, 1.0, 1.0]


def test_entropy_is_the_mean_over_the_responses_tokens() -> None:
    model = small_model()
    for found in run(learner_of(model), [rows_of()]).rows:
        logprob_TV = logprobs_of(small_model(), requests()[found.index])
        expected = -(logprob_TV.exp() * logprob_TV).sum(dim=1).mean()
        assert found.entropy == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize(("advantage", "cosine"), [(2.0, 1.0), (-0.5, -1.0)])
def test_cosine_tells_whether_own_and_cross_rows_agree_and_changes_nothing(advantage: float, cosine: float) -> None:
    own = rows_of()[0]
    cross = cross_row(own.prompt_ids, own.response_ids, advantage, old_mean_logprob=own.old_mean_logprob + 0.2)
    learner, untouched = learner_of(small_model()), learner_of(small_model())
    assert learner.gradient_cosine(minibatch([own, cross], HACPO), HACPO) == pytest.approx(cosine, abs=1e-5)
    assert learner.gradient_cosine(minibatch([own], HACPO), HACPO) is None
    run(learner, [rows_of()])
    run(untouched, [rows_of()])
    assert learner.fingerprint() == untouched.fingerprint()
