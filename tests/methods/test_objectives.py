"""Joint advantages and the objectives of the shipped methods, and their limits.

Shapes: P problem, A agent, G response, L learner, B sequence, T token.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hacpo_core.errors import MethodError
from hacpo_core.methods.objective import LossRows, Objective, Surrogate
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.sequence_clip import SequenceClip
from hacpo_core.methods.objectives.token_clip import TokenClip
from tests.algo.joint import Joint
from tests.algo.joint import joint as joint_of
from tests.algo.micro_batch import MicroBatch, Value, value_of

HACPO, GSPO = CrossClip(), SequenceClip()
PAIR = [[[1, 1, 0, 1], [0, 1, 0, 0]]]


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def joint(nested: object, ratio_AA: list[list[float]], **choices: Any) -> Joint:
    reward_PAG = tensor(nested)
    return joint_of(reward_PAG, ~reward_PAG.isnan(), tensor(ratio_AA), **choices)


def one_token_rows(
    ratios: list[float], advantages: list[float], *, is_own: list[bool], weights: list[float], row_weight: float
) -> tuple[MicroBatch, Tensor]:
    """Rows of one token each whose sequence ratio is as given, and the current log-probabilities."""
    logprob_BT = tensor([[math.log(0.5)]] * len(ratios)).requires_grad_()
    rows = MicroBatch(
        mask_BT=torch.ones(len(ratios), 1, dtype=torch.bool),
        is_own_B=torch.tensor(is_own),
        advantage_B=tensor(advantages),
        weight_B=tensor(weights),
        old_mean_logprob_B=math.log(0.5) - tensor(ratios).log(),
        row_weight_B=torch.full((len(ratios),), row_weight, dtype=torch.float64),
    )
    return rows, logprob_BT


def test_weight_of_cross_responses_is_the_samplers_capability_over_the_learners() -> None:
    found = joint(PAIR, [[1.0, 1.5], [2 / 3, 1.0]])
    torch.testing.assert_close(found.weight_LA, tensor([[1.0, 2 / 3], [1.5, 1.0]]))  # transposed: 1.5 and 2/3
    assert found.advantage_LPAG[0, 0, 0, 0].item() == pytest.approx(0.8184860221096643, abs=1e-12)
    assert found.advantage_LPAG[0, 0, 1, 1].item() == pytest.approx(1.169265745870949, abs=1e-12)


def test_weights_of_one_leave_the_baseline_alone() -> None:
    ratio_AA = [[1.0, 1.5], [2 / 3, 1.0]]
    without = joint(PAIR, ratio_AA, cross_weight="one")
    assert without.weight_LA.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert torch.equal(without.advantage_LPAG, joint(PAIR, ratio_AA).advantage_LPAG)


def test_pooled_baseline_leaves_the_weights_alone() -> None:
    found = joint(PAIR, [[1.0, 1.5], [2 / 3, 1.0]], baseline="pooled")
    torch.testing.assert_close(found.weight_LA, tensor([[1.0, 2 / 3], [1.5, 1.0]]))
    assert found.baseline.mean_PA.tolist() == [[0.5, 0.5]]


def test_guard_acts_where_a_baseline_is_above_one() -> None:
    ratio_AA = [[1.0, 2.0], [0.5, 1.0]]
    assert joint([[[1, 1], [0, 1]]], ratio_AA).baseline.mean_PA[0, 0] == 1.0
    guarded = joint([[[1, 0], [1, 1]]], ratio_AA)
    assert (guarded.baseline.mean_PA[0, 0].item(), guarded.baseline.num_guarded) == (0.5, 1)
    unguarded = joint([[[1, 0], [1, 1]]], ratio_AA, binary_guard=False)
    assert (unguarded.baseline.mean_PA[0, 0].item(), unguarded.baseline.num_guarded) == (1.25, 0)


def test_responses_that_do_not_count_change_no_mean_and_get_an_advantage() -> None:
    counts_PAG = torch.tensor([[[True, True, True, False], [True] * 4]])
    found = joint([[[1, 0, 0, 1], [0, 1, 0, 0]]], [[1.0, 1.0], [1.0, 1.0]], baseline="own", counts_PAG=counts_PAG)
    assert found.baseline.mean_PA[0, 0].item() == pytest.approx(1 / 3)
    # std of 1, 0, 0 with ddof 1
    assert found.advantage_LPAG[0, 0, 0, 3].item() == pytest.approx((2 / 3) / (math.sqrt(1 / 3) + 1e-6))


def test_shaped_rewards_move_their_own_advantage_alone() -> None:
    shaped_PAG = tensor([[[1.0, 0.5, 0.0, 0.0]]])
    plain, shaped = (joint([[[1, 0, 0, 0]]], [[1.0]], baseline="own", shaped_PAG=given) for given in (None, shaped_PAG))
    difference = shaped.advantage_LPAG - plain.advantage_LPAG
    assert difference.flatten().tolist() == pytest.approx([0.0, 0.5 / (0.5 + 1e-6), 0.0, 0.0])


def test_bounds_of_cross_rows_after_three_updates() -> None:
    assert HACPO.cross_limit(3) == (pytest.approx(0.875), 1.0)
    assert replace(HACPO, cross_step=0.0).cross_limit(3) == (0.8, 1.0)
    assert replace(HACPO, cross_bounds="none").cross_limit(3) == (0.0, math.inf)
    assert replace(HACPO, cross_bounds="own").cross_limit(3) == (1 - 3e-4, 1 + 4e-4)


def test_each_row_reports_the_bounds_that_it_met() -> None:
    rows, logprob_BT = one_token_rows([1.0, 1.0], [1.0, 1.0], is_own=[True, False], weights=[1.0, 1.0], row_weight=1.0)
    found = rows.value(HACPO, logprob_BT.float(), update=3).surrogate
    assert found.floor_B.tolist() == pytest.approx([1 - 3e-4, 0.875])
    assert found.ceiling_B.tolist() == pytest.approx([1 + 4e-4, 1.0])


def test_objective_keeps_own_and_cross_rows_apart() -> None:
    rows, logprob_BT = one_token_rows(
        [1.0, 2.0, 0.9, 1.2],
        [2.0, 2.0, 2.0, -2.0],
        is_own=[True, True, False, False],
        weights=[1.0, 1.0, 1.5, 1.5],
        row_weight=0.5,
    )
    found = rows.value(HACPO, logprob_BT, update=0)
    # own: 0.5 (2 + 1.0004 * 2); cross: 0.5 (0.9 * 0.9 * 1.5 * 2 - 1 * 1 * 1.5 * 2)
    assert found.own_objective.item() == pytest.approx(2.0004, abs=1e-12)
    assert found.cross_objective.item() == pytest.approx(-0.285, abs=1e-12)
    assert found.surrogate.ratio_B.tolist() == pytest.approx([1.0, 2.0, 0.9, 1.2], abs=1e-12)
    assert found.surrogate.stopped_share_B.tolist() == [0.0, 1.0, 0.0, 1.0]
    (gradient_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, logprob_BT)
    # d/dlog pi is d/ds times s: 0.5 * 2, stopped, 0.5 * (0.9 * 1.5 * 2) * 0.9, stopped
    assert gradient_BT[:, 0].tolist() == pytest.approx([1.0, 0.0, 1.215, 0.0], abs=1e-12)


def test_without_bounds_a_cross_row_above_one_weighs_its_power() -> None:
    rows, logprob_BT = one_token_rows([1.2], [1.0], is_own=[False], weights=[1.0], row_weight=1.0)
    for bounds, value in (("stepwise", 1.0), ("none", 1.2**2)):  # s sg(s)^alpha, alpha is 1
        found = rows.value(replace(HACPO, cross_bounds=bounds), logprob_BT, update=0)
        assert found.cross_objective.item() == pytest.approx(value, abs=1e-12)


def test_rows_of_another_shape_are_refused_and_not_broadcast() -> None:
    rows, _ = one_token_rows([1.0, 1.0], [1.0, 1.0], is_own=[True, True], weights=[1.0, 1.0], row_weight=1.0)
    whole = rows.rows()
    with pytest.raises(ValueError, match=r"advantage_B: got \(2, 1\), expected \(2,\)"):
        replace(whole, advantage_B=whole.advantage_B[:, None])
    with pytest.raises(ValueError, match=r"old_logprob_BT: got \(2, 2\), expected \(2, 1\)"):
        replace(whole, old_logprob_BT=torch.zeros(2, 2))


class Broadcast(SequenceClip):
    """Returns one number for all rows."""

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        found = super().surrogate(rows, logprob_BT, update=update)
        return replace(found, value_B=found.value_B.mean())


def test_surrogate_of_another_shape_is_refused_and_not_broadcast() -> None:
    rows, logprob_BT = one_token_rows([1.0, 1.0], [1.0, 1.0], is_own=[True, True], weights=[1.0, 1.0], row_weight=1.0)
    with pytest.raises(MethodError, match=r"value: got \(\), expected \(2,\)"):
        value_of(Broadcast(), rows.rows(), logprob_BT, rows.row_weight_B, update=0)


def test_floor_rises_within_the_step() -> None:
    rows, logprob_BT = one_token_rows([0.85], [2.0], is_own=[False], weights=[1.0], row_weight=1.0)
    for update, floored, is_stopped in [(0, 0.85, 0.0), (1, 0.85, 0.0), (3, 0.875, 1.0), (20, 1.0, 1.0)]:
        found = rows.value(HACPO, logprob_BT, update=update)
        assert found.cross_objective.item() == pytest.approx(floored * floored * 2.0, abs=1e-12)
        assert found.surrogate.stopped_share_B.tolist() == [is_stopped]


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (5.0, -1.0, -3.0, 0.0),  # -5 without the dual clip
        (2.0, -1.0, -2.0, -2.0),
        (0.5, -1.0, -0.8, 0.0),
        (5.0, 1.0, 1.28, 0.0),
        (0.5, 1.0, 0.5, 0.5),
    ],
)
def test_dual_clip_bounds_what_a_bad_token_counts(
    ratio: float, advantage: float, value: float, gradient: float
) -> None:
    rows, logprob_BT = one_token_rows([ratio], [advantage], is_own=[True], weights=[1.0], row_weight=1.0)
    rows = replace(rows, old_logprob_BT=logprob_BT.detach() - math.log(ratio))
    found = rows.value(TokenClip(dual_clip=3.0), logprob_BT)
    assert found.own_objective.item() == pytest.approx(value)
    (gradient_BT,) = torch.autograd.grad(found.own_objective, logprob_BT)
    assert gradient_BT.item() == pytest.approx(gradient)
    assert found.surrogate.stopped_share_B.item() == float(gradient == 0.0)
    without = rows.value(TokenClip(), logprob_BT)
    assert without.own_objective.item() == pytest.approx(-5.0 if (ratio, advantage) == (5.0, -1.0) else value)


def test_logged_objective_of_others_rows_leaves_out_those_without_gradient() -> None:
    ratios, advantages = [0.9, 0.5, 1.2], [1.0, 2.0, 3.0]  # the bounds are [0.8, 1]
    rows, logprob_BT = one_token_rows(ratios, advantages, is_own=[False] * 3, weights=[1.0] * 3, row_weight=1 / 3)
    found = rows.value(CrossClip(cross_exponent=1.0), logprob_BT)
    assert found.live_cross_objective.item() == pytest.approx(0.9**2 / 3)
    assert found.cross_objective.item() == pytest.approx((0.9**2 + 2 * 0.8**2 + 3) / 3)
    (gradient_BT,) = torch.autograd.grad(found.cross_objective, logprob_BT)
    assert gradient_BT.flatten().tolist() == pytest.approx([0.9**2 / 3, 0.0, 0.0])


def test_token_ratios_are_clipped_one_by_one() -> None:
    logprob_BT = tensor([[math.log(0.5), math.log(0.5), math.log(0.5), 0.0]]).requires_grad_()
    rows = MicroBatch(
        mask_BT=torch.tensor([[True, True, True, False]]),
        is_own_B=torch.tensor([True]),
        advantage_B=tensor([2.0]),
        weight_B=tensor([1.0]),
        old_mean_logprob_B=tensor([math.log(0.5)]),
        row_weight_B=tensor([1 / 3]),
        old_logprob_BT=tensor([[math.log(0.5), math.log(0.25), math.log(1.0), 0.0]]),
    )
    found = rows.value(TokenClip(), logprob_BT, update=0)
    # ratios 1, 2, 0.5: (1 + 1.28 + 0.5) * 2 / 3, the padding counts for nothing
    assert found.own_objective.item() == pytest.approx(1.8533333333333333, abs=1e-12)
    assert found.surrogate.stopped_share_B.item() == pytest.approx(1 / 3, abs=1e-12)
    # the sequence's ratio is 1, inside the bounds; of the tokens one is below .8 and one above 1.28
    assert found.surrogate.below_B.item() == pytest.approx(1 / 3, abs=1e-12)
    assert found.surrogate.above_B.item() == pytest.approx(1 / 3, abs=1e-12)
    (gradient_BT,) = torch.autograd.grad(found.own_objective, logprob_BT)
    assert gradient_BT[0].tolist() == pytest.approx([2 / 3, 0.0, 1 / 3, 0.0], abs=1e-12)


def test_kl_is_subtracted_on_own_rows_only() -> None:
    rows, logprob_BT = one_token_rows([1.0, 1.0], [0.0, 0.0], is_own=[True, False], weights=[1.0, 1.0], row_weight=1.0)
    rows = replace(rows, reference_logprob_BT=logprob_BT.detach() + math.log(2))
    found = rows.value(replace(HACPO, kl_coef=0.1), logprob_BT)
    assert found.own_objective.item() == pytest.approx(-0.03068528194400547, abs=1e-15)
    assert found.cross_objective.item() == 0.0
    (gradient_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, logprob_BT)
    assert gradient_BT[:, 0].tolist() == pytest.approx([0.1, 0.0], abs=1e-15)


def test_sequence_kl_is_a_mean_and_token_kl_a_weighted_sum() -> None:
    logprob_BT = tensor([[-1.0, -1.0, -1.0]])
    rows = MicroBatch(
        mask_BT=torch.tensor([[True, True, False]]),
        is_own_B=torch.tensor([True]),
        advantage_B=tensor([0.0]),
        weight_B=tensor([1.0]),
        old_mean_logprob_B=tensor([-1.0]),
        row_weight_B=tensor([0.25]),
        old_logprob_BT=logprob_BT,
        reference_logprob_BT=tensor([[-1.0 + math.log(2), -1.0, 5.0]]),
    )
    k3 = 0.3068528194400547
    by_sequence = rows.value(SequenceClip(kl_coef=1.0), logprob_BT)
    by_token = rows.value(TokenClip(kl_coef=1.0), logprob_BT)
    assert by_sequence.own_objective.item() == pytest.approx(-0.25 * k3 / 2, abs=1e-15)
    assert by_token.own_objective.item() == pytest.approx(-0.25 * k3, abs=1e-15)
    assert by_sequence.columns["kl"].item() == by_token.columns["kl"].item() == pytest.approx(k3 / 2, abs=1e-15)


def test_kl_of_own_tokens_is_one_mean_over_them_whatever_the_rows_weigh() -> None:
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [True, True, True]])
    logprob_BT = torch.full((3, 3), -1.0, dtype=torch.float64).requires_grad_()
    twice = -1.0 + math.log(2)
    rows = MicroBatch(
        mask_BT=mask_BT,
        is_own_B=torch.tensor([True, True, False]),
        advantage_B=tensor([0.0, 0.0, 0.0]),
        weight_B=tensor([1.0, 1.0, 1.0]),
        old_mean_logprob_B=tensor([-1.0, -1.0, -1.0]),
        row_weight_B=tensor([1 / 3, 1 / 3, 1 / 3]),
        reference_logprob_BT=tensor([[twice, -1.0, -1.0], [twice, 9.0, 9.0], [twice, twice, twice]]),
    )
    k3 = 0.3068528194400547
    found = rows.value(CrossClip(kl_coef=2.0, kl_aggregation="own_tokens"), logprob_BT)
    assert found.own_objective.item() == pytest.approx(-2.0 * 2 * k3 / 4, abs=1e-15), "two of four own tokens differ"
    assert rows.value(CrossClip(kl_coef=2.0), logprob_BT).own_objective.item() == pytest.approx(
        -2.0 * (k3 / 3 + k3) / 3
    )
    (gradient_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, logprob_BT)
    # The derivative of k3 at d = log 2 is 1 - 2 = -1 per nat of log pi, times 2.0 / 4 for each own token.
    assert gradient_BT.flatten().tolist() == pytest.approx([0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0], abs=1e-15)


def test_entropy_bonus_is_one_mean_over_own_tokens_whatever_the_rows_weigh() -> None:
    mask_BT = torch.tensor([[True, True], [True, False], [True, True]])
    logprob_BT = torch.full((3, 2), -1.0, dtype=torch.float64).requires_grad_()
    entropy_BT = tensor([[0.5, 1.0], [1.5, 0.0], [9.0, 9.0]]).requires_grad_()
    rows = MicroBatch(
        mask_BT=mask_BT,
        is_own_B=torch.tensor([True, True, False]),
        advantage_B=tensor([0.0, 0.0, 0.0]),
        weight_B=tensor([1.0, 1.0, 1.0]),
        old_mean_logprob_B=tensor([-1.0, -1.0, -1.0]),
        row_weight_B=tensor([0.5, 0.5, 1.0]),
    )

    def value(method: Objective, micro_batch: LossRows) -> Value:
        return value_of(
            method, micro_batch, logprob_BT, rows.row_weight_B, update=0, num_own_tokens=3, entropy_BT=entropy_BT
        )

    found = value(CrossClip(entropy_coef=0.6), rows.rows())
    assert (found.own_objective.item(), found.cross_objective.item()) == (pytest.approx(0.6 * 3.0 / 3), 0.0)
    (gradient_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, entropy_BT)
    assert gradient_BT.tolist() == [[pytest.approx(0.2)] * 2, [pytest.approx(0.2)] * 2, [0.0, 0.0]]
    assert value(CrossClip(), rows.rows()).own_objective.item() == 0.0


def test_mini_batch_of_foreign_rows_has_no_kl_and_a_finite_gradient() -> None:
    rows, logprob_BT = one_token_rows([0.9], [1.0], is_own=[False], weights=[1.0], row_weight=1.0)
    rows = replace(rows, reference_logprob_BT=logprob_BT.detach() + math.log(2))
    found = rows.value(CrossClip(kl_coef=1.0, kl_aggregation="own_tokens", cross_exponent=0.0), logprob_BT)
    assert (found.own_objective.item(), found.cross_objective.item()) == (0.0, pytest.approx(0.9))
    (gradient_BT,) = torch.autograd.grad(found.own_objective + found.cross_objective, logprob_BT)
    assert gradient_BT.item() == pytest.approx(0.9)


def test_one_agent_reduces_hacpo_to_gspo_bit_for_bit() -> None:
    random = torch.Generator().manual_seed(0)
    reward_PAG = torch.rand(20, 1, 8, generator=random, dtype=torch.float64)
    reward_PAG[:10] = reward_PAG[:10].round()
    is_scored_PAG = torch.rand(20, 1, 8, generator=random) < 0.9
    ratio_AA = torch.ones(1, 1, dtype=torch.float64)
    hacpo, gspo = (
        joint_of(reward_PAG, is_scored_PAG, ratio_AA, baseline=baseline) for baseline in ("capability", "own")
    )
    assert torch.equal(hacpo.advantage_LPAG, gspo.advantage_LPAG)
    assert torch.equal(hacpo.weight_LA, gspo.weight_LA)
    assert hacpo.advantage_LPAG.count_nonzero() > 100

    ratios = torch.linspace(0.999, 1.001, 40, dtype=torch.float64).tolist()
    rows, logprob_BT = one_token_rows(
        ratios, hacpo.advantage_LPAG.flatten()[:40].tolist(), is_own=[True] * 40, weights=[1.0] * 40, row_weight=1 / 40
    )
    results: list[tuple[Value, Tensor]] = []
    methods: list[Objective] = [HACPO, GSPO]
    for method in methods:
        found = rows.value(method, logprob_BT, update=5)
        results.append((found, torch.autograd.grad(found.own_objective + found.cross_objective, logprob_BT)[0]))
    (a, a_gradient_BT), (b, b_gradient_BT) = results
    assert torch.equal(a.own_objective, b.own_objective)
    assert torch.equal(a.surrogate.stopped_share_B, b.surrogate.stopped_share_B)
    assert torch.equal(a_gradient_BT, b_gradient_BT)
    assert a.cross_objective == b.cross_objective == 0.0


def test_equal_agents_without_discount_reduce_cross_to_gspo_clipped_above_only() -> None:
    ratios, advantages = [0.3, 0.9, 1.0, 1.1, 1.1], [1.0, -2.0, 3.0, 4.0, -5.0]
    rows, logprob_BT = one_token_rows(ratios, advantages, is_own=[False] * 5, weights=[1.0] * 5, row_weight=0.2)
    found = rows.value(replace(HACPO, cross_exponent=0.0, cross_floor=0.0), logprob_BT)
    # min(s, 1) A: 0.3 - 1.8 + 3 + 4 - 5, a fifth of it; the minimum of GSPO would make the last term -5.5
    assert found.cross_objective.item() == pytest.approx(0.1, abs=1e-12)
    (gradient_BT,) = torch.autograd.grad(found.cross_objective, logprob_BT)
    assert gradient_BT[:, 0].tolist() == pytest.approx([0.06, -0.36, 0.6, 0.0, 0.0], abs=1e-12)


def test_equal_agents_share_one_pooled_baseline() -> None:
    ones = [[1.0, 1.0], [1.0, 1.0]]
    hacpo, naive = joint(PAIR, ones), joint(PAIR, ones, baseline="pooled", cross_weight="one")
    assert torch.equal(hacpo.advantage_LPAG, naive.advantage_LPAG)
    for choice in ("source", "learner"):
        assert torch.equal(joint(PAIR, ones, cross_baseline=choice).advantage_LPAG, naive.advantage_LPAG)


def test_naive_clips_every_response_as_gspo_does() -> None:
    ratios, advantages = [0.99, 1.0, 1.01, 1.01], [1.0, 2.0, 3.0, -3.0]
    options = {"weights": [1.0] * 4, "row_weight": 0.25}
    cross_rows, logprob_BT = one_token_rows(ratios, advantages, is_own=[False] * 4, **options)  # type: ignore[arg-type]
    own_rows = replace(cross_rows, is_own_B=torch.ones(4, dtype=torch.bool))
    cross, own = cross_rows.value(GSPO, logprob_BT, update=7), own_rows.value(GSPO, logprob_BT, update=7)
    assert torch.equal(cross.cross_objective, own.own_objective)
    assert torch.equal(cross.surrogate.stopped_share_B, own.surrogate.stopped_share_B)
    as_hacpo = replace(HACPO, cross_bounds="own", cross_is_pessimistic=True, cross_exponent=0.0)
    assert torch.equal(cross_rows.value(as_hacpo, logprob_BT, update=7).cross_objective, own.own_objective)
