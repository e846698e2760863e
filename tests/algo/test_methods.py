"""Methods as declarations: joint advantages, the objective's two terms, and their limits.

Shapes: P problem, A agent, G response, L learner, B sequence, T token.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hacpo_core import config
from hacpo_core.algo.advantages import Baseline, own_baseline
from hacpo_core.algo.capability import CapabilityRatios, unit_ratios
from hacpo_core.algo.methods import (
    BASELINES,
    BaselineError,
    JointAdvantages,
    Method,
    Objective,
    Rows,
    find_baseline,
    joint_advantages,
    method_bounds,
    objective,
)

HACPO = Method(name="hacpo")
GSPO = Method(name="gspo", shares_rollouts=False, baseline="own", cross_weight="one")
NAIVE = Method(
    name="naive",
    baseline="pooled",
    cross_weight="one",
    cross_exponent=0.0,
    cross_bounds="own",
    cross_is_pessimistic=True,
)
PAIR = [[[1, 1, 0, 1], [0, 1, 0, 0]]]


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def joint(method: Method, nested: object, ratio_AA: list[list[float]]) -> JointAdvantages:
    reward_PAG = tensor(nested)
    return joint_advantages(method, reward_PAG, ~reward_PAG.isnan(), CapabilityRatios(tensor(ratio_AA), 0, 0))


def one_token_rows(
    ratios: list[float], advantages: list[float], *, is_own: list[bool], weights: list[float], row_weight: float
) -> tuple[Rows, Tensor]:
    """Rows of one token each whose sequence ratio is as given, and the current log-probabilities."""
    logprob_BT = tensor([[math.log(0.5)]] * len(ratios)).requires_grad_()
    rows = Rows(
        mask_BT=torch.ones(len(ratios), 1, dtype=torch.bool),
        is_own_B=torch.tensor(is_own),
        advantage_B=tensor(advantages),
        cross_weight_B=tensor(weights),
        old_mean_logprob_B=math.log(0.5) - tensor(ratios).log(),
        row_weight_B=torch.full((len(ratios),), row_weight, dtype=torch.float64),
    )
    return rows, logprob_BT


def test_weight_of_cross_responses_is_the_samplers_capability_over_the_learners() -> None:
    found = joint(HACPO, PAIR, [[1.0, 1.5], [2 / 3, 1.0]])
    torch.testing.assert_close(found.weight_LA, tensor([[1.0, 2 / 3], [1.5, 1.0]]))  # transposed: 1.5 and 2/3
    assert found.advantage_LPAG[0, 0, 0, 0].item() == pytest.approx(0.8184860221096643, abs=1e-12)
    assert found.advantage_LPAG[0, 0, 1, 1].item() == pytest.approx(1.169265745870949, abs=1e-12)


def test_weights_of_one_leave_the_baseline_alone() -> None:
    ratio_AA = [[1.0, 1.5], [2 / 3, 1.0]]
    without = joint(replace(HACPO, cross_weight="one"), PAIR, ratio_AA)
    assert without.weight_LA.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert torch.equal(without.advantage_LPAG, joint(HACPO, PAIR, ratio_AA).advantage_LPAG)


def test_pooled_baseline_leaves_the_weights_alone() -> None:
    found = joint(replace(HACPO, baseline="pooled"), PAIR, [[1.0, 1.5], [2 / 3, 1.0]])
    torch.testing.assert_close(found.weight_LA, tensor([[1.0, 2 / 3], [1.5, 1.0]]))
    assert found.baseline.mean_PA.tolist() == [[0.5, 0.5]]


def test_guard_acts_where_no_reward_is_above_one() -> None:
    ratio_AA = [[1.0, 2.0], [0.5, 1.0]]
    assert joint(HACPO, [[[1, 1], [0, 1]]], ratio_AA).baseline.mean_PA[0, 0] == 1.0
    high = joint(HACPO, [[[1, 1], [1, 1.5]]], ratio_AA)
    assert (high.baseline.mean_PA[0, 0].item(), high.baseline.num_guarded) == (1.75, 0)
    guarded = joint(HACPO, [[[1, 0], [1, 1]]], ratio_AA)
    assert (guarded.baseline.mean_PA[0, 0].item(), guarded.baseline.num_guarded) == (0.5, 1)
    unguarded = joint(replace(HACPO, binary_guard=False), [[[1, 0], [1, 1]]], ratio_AA)
    assert (unguarded.baseline.mean_PA[0, 0].item(), unguarded.baseline.num_guarded) == (1.25, 0)


def test_baseline_may_be_any_importable_function() -> None:
    method = replace(HACPO, baseline="hacpo_core.algo.advantages:own_baseline")
    assert find_baseline(method.baseline) is own_baseline
    assert joint(method, PAIR, [[1.0, 1.5], [2 / 3, 1.0]]).baseline.mean_PA.tolist() == [[0.75, 0.25]]


@pytest.mark.parametrize("name", ["nothing", "nowhere.at.all:f", "hacpo_core.algo.advantages:f", ":f"])
def test_unknown_baseline_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="own, pooled, capability") as caught:
        find_baseline(name)
    assert repr(name) in str(caught.value)


def baseline_of_ones_own(*_: Tensor) -> Baseline | None:
    """What a user would write."""
    return None


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned NoneType, expected a Baseline"),
        (Baseline(torch.zeros(1, 2), torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.bool)), r"mean_PA is \(1, 2\)"),
        (Baseline(torch.zeros(3, 2), torch.full((3, 2), math.nan), torch.zeros(3, 2) > 0), "std_PA has values that"),
    ],
)
def test_what_somebodys_baseline_returns_is_checked(
    returned: Baseline | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.algo.test_methods.baseline_of_ones_own", lambda *_: returned)
    method = replace(HACPO, baseline="tests.algo.test_methods:baseline_of_ones_own")
    reward_PAG = torch.rand(3, 2, 4, dtype=torch.float64)
    with pytest.raises(BaselineError, match=message):
        joint_advantages(method, reward_PAG, torch.ones_like(reward_PAG, dtype=torch.bool), unit_ratios(2))


def test_configuration_knows_the_built_in_baselines() -> None:
    assert tuple(BASELINES) == config.BASELINES


def test_bounds_of_each_declaration_after_three_updates() -> None:
    assert method_bounds(HACPO, update=3) == ((1 - 3e-4, 1 + 4e-4), (pytest.approx(0.875), 1.0))
    assert method_bounds(replace(HACPO, cross_step=0.0), update=3)[1] == (0.8, 1.0)
    assert method_bounds(replace(HACPO, cross_bounds="none"), update=3)[1] == (0.0, math.inf)
    assert method_bounds(NAIVE, update=3)[1] == (1 - 3e-4, 1 + 4e-4)


def test_objective_keeps_own_and_cross_rows_apart() -> None:
    rows, logprob_BT = one_token_rows(
        [1.0, 2.0, 0.9, 1.2],
        [2.0, 2.0, 2.0, -2.0],
        is_own=[True, True, False, False],
        weights=[1.0, 1.0, 1.5, 1.5],
        row_weight=0.5,
    )
    found = objective(HACPO, rows, logprob_BT, update=0)
    # own: 0.5 (2 + 1.0004 * 2); cross: 0.5 (0.9 * 0.9 * 1.5 * 2 - 1 * 1.2 * 1.5 * 2)
    assert found.own.item() == pytest.approx(2.0004, abs=1e-12)
    assert found.cross.item() == pytest.approx(-0.585, abs=1e-12)
    assert found.ratio_B.tolist() == pytest.approx([1.0, 2.0, 0.9, 1.2], abs=1e-12)
    assert found.stopped_share_B.tolist() == [0.0, 1.0, 0.0, 1.0]
    (gradient_BT,) = torch.autograd.grad(found.own + found.cross, logprob_BT)
    # d/dlog pi is d/ds times s: 0.5 * 2, stopped, 0.5 * (0.9 * 1.5 * 2) * 0.9, stopped
    assert gradient_BT[:, 0].tolist() == pytest.approx([1.0, 0.0, 1.215, 0.0], abs=1e-12)


def test_rows_of_another_shape_are_refused_and_not_broadcast() -> None:
    one_B, mask_BT = torch.ones(2), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"advantage_B: got \(2, 1\), expected \(2,\)"):
        Rows(mask_BT, one_B > 0, one_B[:, None], one_B, one_B, one_B)
    with pytest.raises(ValueError, match=r"old_logprob_BT: got \(2, 2\), expected \(2, 3\)"):
        Rows(mask_BT, one_B > 0, one_B, one_B, one_B, one_B, old_logprob_BT=torch.zeros(2, 2))


def test_floor_rises_within_the_step() -> None:
    rows, logprob_BT = one_token_rows([0.85], [2.0], is_own=[False], weights=[1.0], row_weight=1.0)
    for update, floored, is_stopped in [(0, 0.85, 0.0), (1, 0.85, 0.0), (3, 0.875, 1.0), (20, 1.0, 1.0)]:
        found = objective(HACPO, rows, logprob_BT, update=update)
        assert found.cross.item() == pytest.approx(floored * 0.85 * 2.0, abs=1e-12)
        assert found.stopped_share_B.tolist() == [is_stopped]


def test_token_ratios_are_clipped_one_by_one() -> None:
    logprob_BT = tensor([[math.log(0.5), math.log(0.5), math.log(0.5), 0.0]]).requires_grad_()
    rows = Rows(
        mask_BT=torch.tensor([[True, True, True, False]]),
        is_own_B=torch.tensor([True]),
        advantage_B=tensor([2.0]),
        cross_weight_B=tensor([1.0]),
        old_mean_logprob_B=tensor([math.log(0.5)]),
        row_weight_B=tensor([1 / 3]),
        old_logprob_BT=tensor([[math.log(0.5), math.log(0.25), math.log(1.0), 0.0]]),
    )
    grpo = replace(GSPO, ratio="token", own_low=0.2, own_high=0.28)
    found = objective(grpo, rows, logprob_BT, update=0)
    # ratios 1, 2, 0.5: (1 + 1.28 + 0.5) * 2 / 3, the padding counts for nothing
    assert found.own.item() == pytest.approx(1.8533333333333333, abs=1e-12)
    assert found.stopped_share_B.item() == pytest.approx(1 / 3, abs=1e-12)
    (gradient_BT,) = torch.autograd.grad(found.own, logprob_BT)
    assert gradient_BT[0].tolist() == pytest.approx([2 / 3, 0.0, 1 / 3, 0.0], abs=1e-12)


def test_kl_is_subtracted_on_own_rows_only() -> None:
    rows, logprob_BT = one_token_rows([1.0, 1.0], [0.0, 0.0], is_own=[True, False], weights=[1.0, 1.0], row_weight=1.0)
    rows = replace(rows, reference_logprob_BT=logprob_BT.detach() + math.log(2))
    found = objective(replace(HACPO, kl_coef=0.1), rows, logprob_BT, update=0)
    assert found.own.item() == pytest.approx(-0.03068528194400547, abs=1e-15)
    assert found.cross.item() == 0.0
    (gradient_BT,) = torch.autograd.grad(found.own + found.cross, logprob_BT)
    assert gradient_BT[:, 0].tolist() == pytest.approx([0.1, 0.0], abs=1e-15)


def test_sequence_kl_is_a_mean_and_token_kl_a_weighted_sum() -> None:
    logprob_BT = tensor([[-1.0, -1.0, -1.0]])
    rows = Rows(
        mask_BT=torch.tensor([[True, True, False]]),
        is_own_B=torch.tensor([True]),
        advantage_B=tensor([0.0]),
        cross_weight_B=tensor([1.0]),
        old_mean_logprob_B=tensor([-1.0]),
        row_weight_B=tensor([0.25]),
        old_logprob_BT=logprob_BT,
        reference_logprob_BT=tensor([[-1.0 + math.log(2), -1.0, 5.0]]),
    )
    k3 = 0.3068528194400547
    by_sequence = objective(replace(GSPO, kl_coef=1.0), rows, logprob_BT, update=0)
    by_token = objective(replace(GSPO, kl_coef=1.0, ratio="token"), rows, logprob_BT, update=0)
    assert by_sequence.own.item() == pytest.approx(-0.25 * k3 / 2, abs=1e-15)
    assert by_token.own.item() == pytest.approx(-0.25 * k3, abs=1e-15)
    assert by_sequence.kl_B.item() == by_token.kl_B.item() == pytest.approx(k3 / 2, abs=1e-15)


def test_one_agent_reduces_hacpo_to_gspo_bit_for_bit() -> None:
    random = torch.Generator().manual_seed(0)
    reward_PAG = torch.rand(20, 1, 8, generator=random, dtype=torch.float64)
    reward_PAG[:10] = reward_PAG[:10].round()
    is_scored_PAG = torch.rand(20, 1, 8, generator=random) < 0.9
    hacpo, gspo = (joint_advantages(m, reward_PAG, is_scored_PAG, unit_ratios(1)) for m in (HACPO, GSPO))
    assert torch.equal(hacpo.advantage_LPAG, gspo.advantage_LPAG)
    assert torch.equal(hacpo.weight_LA, gspo.weight_LA)
    assert hacpo.advantage_LPAG.count_nonzero() > 100

    ratios = torch.linspace(0.999, 1.001, 40, dtype=torch.float64).tolist()
    rows, logprob_BT = one_token_rows(
        ratios,
        hacpo.advantage_LPAG.flatten()[:40].tolist(),
        is_own=[True] * 40,
        weights=[1.0] * 40,
        row_weight=1 / 40,
    )
    results: list[tuple[Objective, Tensor]] = []
    for method in (HACPO, GSPO):
        found = objective(method, rows, logprob_BT, update=5)
        results.append((found, torch.autograd.grad(found.own + found.cross, logprob_BT)[0]))
    (a, a_gradient_BT), (b, b_gradient_BT) = results
    assert torch.equal(a.own, b.own)
    assert torch.equal(a.stopped_share_B, b.stopped_share_B)
    assert torch.equal(a_gradient_BT, b_gradient_BT)
    assert a.cross == b.cross == 0.0


def test_equal_agents_without_discount_reduce_cross_to_gspo_clipped_above_only() -> None:
    ratios, advantages = [0.3, 0.9, 1.0, 1.1, 1.1], [1.0, -2.0, 3.0, 4.0, -5.0]
    rows, logprob_BT = one_token_rows(ratios, advantages, is_own=[False] * 5, weights=[1.0] * 5, row_weight=0.2)
    found = objective(replace(HACPO, cross_exponent=0.0, cross_floor=0.0), rows, logprob_BT, update=0)
    # min(s, 1) A: 0.3 - 1.8 + 3 + 4 - 5, a fifth of it; the minimum of GSPO would make the last term -5.5
    assert found.cross.item() == pytest.approx(0.1, abs=1e-12)
    (gradient_BT,) = torch.autograd.grad(found.cross, logprob_BT)
    assert gradient_BT[:, 0].tolist() == pytest.approx([0.06, -0.36, 0.6, 0.0, 0.0], abs=1e-12)


def test_equal_agents_share_one_pooled_baseline() -> None:
    ones = [[1.0, 1.0], [1.0, 1.0]]
    hacpo, naive = joint(HACPO, PAIR, ones), joint(NAIVE, PAIR, ones)
    assert torch.equal(hacpo.advantage_LPAG, naive.advantage_LPAG)
    for choice in ("source", "learner"):
        assert torch.equal(
            joint(replace(HACPO, cross_baseline=choice), PAIR, ones).advantage_LPAG,  # type: ignore[arg-type]
            naive.advantage_LPAG,
        )


def test_naive_clips_every_response_as_gspo_does() -> None:
    ratios, advantages = [0.99, 1.0, 1.01, 1.01], [1.0, 2.0, 3.0, -3.0]
    options = {"weights": [1.0] * 4, "row_weight": 0.25}
    cross_rows, logprob_BT = one_token_rows(ratios, advantages, is_own=[False] * 4, **options)  # type: ignore[arg-type]
    own_rows = replace(cross_rows, is_own_B=torch.ones(4, dtype=torch.bool))
    cross = objective(NAIVE, cross_rows, logprob_BT, update=7)
    own = objective(GSPO, own_rows, logprob_BT, update=7)
    assert torch.equal(cross.cross, own.own)
    assert torch.equal(cross.stopped_share_B, own.stopped_share_B)
