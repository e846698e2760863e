"""Baselines and advantages of two agents by hand; three agents where two would hide a mistake.

Agent 0 scores 1 1 0 1 (mean 0.75), agent 1 scores 0 1 0 0 (mean 0.25); w[0, 1] = 1.5, w[1, 0] = 2/3.

    mu[0] = (0.75 + 1.5 * 0.25) / 2 = 0.5625          transposed w: 0.458333
    mu[1] = (2/3 * 0.75 + 0.25) / 2 = 0.375           transposed w: 0.6875
    sigma = sqrt(8 * 0.25 / 7)      = 0.5345224838248488

Shapes: P problem, A agent, G response, L learner.
"""

import math

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.advantages import (
    Baseline,
    capability_baseline,
    guard_binary,
    own_baseline,
    pooled_baseline,
    standardise,
)
from hacpo_core.algo.capability import capability_ratios
from tests.algo.joint import joint

NO_VERDICT = math.nan
RATIO_AA = torch.tensor([[1.0, 1.5], [2 / 3, 1.0]], dtype=torch.float64)
PAIR: list[list[list[float]]] = [[[1, 1, 0, 1], [0, 1, 0, 0]]]


def rewards(nested: list[list[list[float]]]) -> tuple[Tensor, Tensor]:
    reward_PAG = torch.tensor(nested, dtype=torch.float64)
    return reward_PAG, ~reward_PAG.isnan()


def by_learner(group: tuple[Tensor, Tensor], baseline: Baseline) -> Tensor:
    """advantage_LPAG relative to each learner's baseline."""
    return torch.stack([standardise(*group, baseline.of_agent(k)) for k in range(baseline.mean_PA.shape[1])])


def test_baseline_of_weaker_agent_discounts_stronger_rewards() -> None:
    baseline = capability_baseline(*rewards(PAIR), RATIO_AA)
    assert baseline.mean_PA[0].tolist() == pytest.approx([0.5625, 0.375], abs=1e-15)
    assert baseline.std_PA[0].tolist() == pytest.approx([0.5345224838248488] * 2, abs=1e-15)


def test_baseline_of_three_agents_averages_three_scaled_means() -> None:
    ratio_AA = torch.tensor([[1, 2, 4], [0.5, 1, 2], [0.25, 0.5, 1]], dtype=torch.float64)
    baseline = capability_baseline(*rewards([[[1, 1], [1, 0], [0, 1]]]), ratio_AA)
    # (1 + 2 * 0.5 + 4 * 0.5) / 3, (0.5 + 0.5 + 2 * 0.5) / 3, (0.25 + 0.5 * 0.5 + 0.5) / 3
    assert baseline.mean_PA[0].tolist() == pytest.approx([4 / 3, 2 / 3, 1 / 3], abs=1e-15)


def test_baseline_weighs_agents_equally_when_verdicts_are_missing() -> None:
    baseline = capability_baseline(*rewards([[[1, 1, 0, 1], [1, NO_VERDICT, NO_VERDICT, NO_VERDICT]]]), RATIO_AA)
    # (0.75 + 1.5 * 1) / 2; a mean over all five scored responses would give 0.9
    assert baseline.mean_PA[0, 0].item() == pytest.approx(1.125, abs=1e-15)


def test_agent_without_verdicts_is_left_out_of_the_baseline() -> None:
    baseline = capability_baseline(*rewards([[[1, 1, 0, 1], [NO_VERDICT] * 4]]), RATIO_AA)
    assert baseline.mean_PA[0].tolist() == pytest.approx([0.75, 0.5], abs=1e-15)


def test_pooled_baseline_is_the_plain_mean_of_all_rewards() -> None:
    baseline = pooled_baseline(*rewards(PAIR))
    assert baseline.mean_PA.tolist() == [[0.5, 0.5]]
    assert baseline.std_PA[0].tolist() == pytest.approx([0.5345224838248488] * 2, abs=1e-15)


def test_pooled_baseline_counts_every_scored_reward_once() -> None:
    group = rewards([[[1, 0, 0, 0], [1, NO_VERDICT, NO_VERDICT, NO_VERDICT]]])
    assert pooled_baseline(*group).mean_PA[0].tolist() == pytest.approx([0.4, 0.4], abs=1e-15)
    # the capability baseline is the mean of the agents' means, (0.25 + 1) / 2
    scaled = capability_baseline(*group, torch.ones_like(RATIO_AA))
    assert scaled.mean_PA[0].tolist() == pytest.approx([0.625, 0.625], abs=1e-15)


def test_own_deviation_divides_unless_own_rewards_are_all_equal() -> None:
    reward_PAG, is_scored_PAG = rewards([*PAIR, [[1, 1, 1, 1], [0, 1, 0, 0]]])
    found = joint(reward_PAG, is_scored_PAG, baseline="pooled", scale="own")
    # means 0.5 and 0.625; own deviations 0.5 and 0.5, then none and 0.5; joint deviation of the second sqrt(1.875 / 7)
    advantage_PAG = found.advantage_LPAG[0]
    assert advantage_PAG[0].tolist() == [
        pytest.approx([1, 1, -1, 1], abs=1e-5),
        pytest.approx([-1, 1, -1, -1], abs=1e-5),
    ]
    assert advantage_PAG[1, 0].tolist() == pytest.approx([0.375 / math.sqrt(1.875 / 7)] * 4, abs=1e-5)
    assert advantage_PAG[1, 1].tolist() == pytest.approx([-1.25, 0.75, -1.25, -1.25], abs=1e-5)


def test_own_baseline_sees_no_other_agent() -> None:
    baseline = own_baseline(*rewards(PAIR))
    assert baseline.mean_PA.tolist() == [[0.75, 0.25]]
    assert baseline.std_PA.tolist() == [[0.5, 0.5]]


def test_advantage_is_the_distance_from_the_baseline_in_joint_deviations() -> None:
    group = rewards(PAIR)
    advantage_PAG = standardise(*group, capability_baseline(*group, RATIO_AA).of_agent(0))
    # 0.4375 and -0.5625 over 0.5345224838248488 + 1e-6
    right, wrong = 0.8184860221096643, -1.0523391712838541
    assert advantage_PAG[0, 0].tolist() == pytest.approx([right, right, wrong, right], abs=1e-12)
    assert advantage_PAG[0, 1].tolist() == pytest.approx([wrong, right, wrong, wrong], abs=1e-12)


def test_epsilon_is_added_to_the_deviation_and_not_to_the_variance() -> None:
    group = rewards([[[1e-6, -1e-6]]])
    advantage_PAG = standardise(*group, own_baseline(*group))
    # 1e-6 / (sqrt(2) 1e-6 + 1e-6)
    assert advantage_PAG[0, 0].tolist() == pytest.approx([0.41421356237309503, -0.41421356237309503], abs=1e-12)


def test_cross_response_carries_its_sources_baseline_by_default() -> None:
    group = rewards(PAIR)
    found_LPAG = joint(*group, RATIO_AA).advantage_LPAG
    # agent 1 against mu[1] = 0.375, for both learners: 0.625 and -0.375 over sigma
    right, wrong = 1.169265745870949, -0.7015594475225694
    for k in (0, 1):
        assert found_LPAG[k, 0, 1].tolist() == pytest.approx([wrong, right, wrong, wrong], abs=1e-12)
        assert found_LPAG[k, 0, 0, 0].item() == pytest.approx(0.8184860221096643, abs=1e-12)


def test_cross_response_carries_the_learners_baseline_when_asked() -> None:
    group = rewards(PAIR)
    found_LPAG = by_learner(group, capability_baseline(*group, RATIO_AA))
    assert found_LPAG[0, 0, 1, 1].item() == pytest.approx(0.8184860221096643, abs=1e-12)
    assert found_LPAG[1, 0, 0, 0].item() == pytest.approx(1.169265745870949, abs=1e-12)


def test_own_responses_carry_the_same_advantage_under_both_choices() -> None:
    group = rewards(PAIR)
    baseline = capability_baseline(*group, RATIO_AA)
    source_PAG, learner_LPAG = standardise(*group, baseline), by_learner(group, baseline)
    for k in (0, 1):
        assert torch.equal(source_PAG[:, k], learner_LPAG[k, :, k])


def test_uniform_problem_gives_zero_though_the_baseline_differs_from_the_reward() -> None:
    group = rewards([[[1, 1], [1, 1]]])
    baseline = capability_baseline(*group, RATIO_AA)
    assert baseline.mean_PA[0, 0].item() == pytest.approx(1.25)  # (1 - 1.25) / 1e-6 would be -250,000
    assert standardise(*group, baseline).eq(0.0).all()


def test_own_group_that_is_uniform_gives_zero_beside_one_that_is_not() -> None:
    group = rewards([[[1, 1], [1, 0]]])
    advantage_PAG = standardise(*group, own_baseline(*group))
    assert advantage_PAG[0, 0].tolist() == [0.0, 0.0]
    assert advantage_PAG[0, 1, 0] > 0.7


def test_agents_that_are_uniform_apart_but_not_together_keep_their_advantage() -> None:
    group = rewards([[[1, 1], [0, 0]]])
    advantage_PAG = standardise(*group, pooled_baseline(*group))
    assert advantage_PAG[0, :, 0].tolist() == pytest.approx([0.8660239037870368, -0.8660239037870368], abs=1e-12)


def test_unscored_response_carries_zero() -> None:
    group = rewards([[[1, NO_VERDICT, 0, 1], [0, 1, 0, NO_VERDICT]]])
    advantage_PAG = standardise(*group, capability_baseline(*group, RATIO_AA))
    assert advantage_PAG[0, 0, 1] == 0.0
    assert advantage_PAG[0, 1, 3] == 0.0
    assert advantage_PAG.count_nonzero() == 6


def test_guard_replaces_only_baselines_that_no_reward_can_reach() -> None:
    group = rewards([[[1, 1, 1, 1], [0, 1, 1, 1]]])
    ratio_AA = torch.tensor([[1.0, 2.0], [0.5, 1.0]], dtype=torch.float64)
    baseline = capability_baseline(*group, ratio_AA)
    assert baseline.mean_PA.tolist() == [[1.25, 0.625]]
    guarded = guard_binary(baseline, *group)
    assert guarded.mean_PA.tolist() == [[1.0, 0.625]]
    assert guarded.num_guarded == 1
    assert torch.equal(guarded.std_PA, baseline.std_PA)


def test_guard_makes_up_no_mean_for_an_agent_without_a_verdict() -> None:
    # agent 1 has no verdict: its baseline 4 * 0.75 = 3 stays, and partners' rows are 1 - 3 and 0 - 3, not 1 and 0
    group = rewards([[[1, 1, 0, 1], [NO_VERDICT] * 4]])
    ratio_AA = torch.tensor([[1.0, 0.25], [4.0, 1.0]], dtype=torch.float64)
    guarded = guard_binary(capability_baseline(*group, ratio_AA), *group)
    assert guarded.mean_PA.tolist() == [[0.75, 3.0]]
    assert guarded.num_guarded == 0
    found = joint(*group, ratio_AA, cross_baseline="learner")
    sigma = math.sqrt(4 * 0.1875 / 3) + 1e-6
    assert found.advantage_LPAG[1, 0, 0].tolist() == pytest.approx([-2 / sigma, -2 / sigma, -3 / sigma, -2 / sigma])


def test_guard_leaves_a_baseline_of_exactly_one() -> None:
    group = rewards([[[1, 1, 1, 1], [0, 0, 1, 1]]])
    baseline = capability_baseline(*group, torch.tensor([[1.0, 2.0], [0.5, 1.0]], dtype=torch.float64))
    guarded = guard_binary(baseline, *group)
    assert guarded.mean_PA.tolist() == [[1.0, 0.5]]
    assert guarded.num_guarded == 0


def test_guard_acts_as_often_as_the_record_of_decisions_says() -> None:
    random, found = torch.Generator().manual_seed(0), []
    for strong, weak in ((0.6904, -0.2837), (1.9163, 0.5723), (2.953, 0.5723)):  # .62 and .45, .8 and .6, .9 and .6
        steps = []
        for _ in range(200):
            log_odds_P = 1.5 * torch.randn(640, 1, 1, generator=random, dtype=torch.float64)
            chance_PAG = (torch.tensor([strong, weak])[:, None] + log_odds_P).sigmoid().expand(-1, -1, 8)
            reward_PAG = chance_PAG.bernoulli(generator=random)
            group = reward_PAG, torch.ones_like(reward_PAG, dtype=torch.bool)
            plain = capability_baseline(*group, capability_ratios(reward_PAG.mean(dim=(0, 2))))
            guarded, differs_P = guard_binary(plain, *group), reward_PAG.flatten(1).std(dim=1) > 0
            assert abs((reward_PAG.mean(dim=2) - plain.mean_PA)[:, 0].mean()) < 1e-9, "of all problems 0"
            leads = [(reward_PAG.mean(dim=2) - b.mean_PA)[differs_P, 0].mean() for b in (guarded, plain)]
            steps.append([(guarded.mean_PA != plain.mean_PA)[:, 0].double().mean(), *leads])
        found.append([round(value, 3) for value in torch.tensor(steps).mean(dim=0).tolist()])
    expected = [[0.17, 0.03, 0.01], [0.32, 0.05, 0.02], [0.43, 0.09, 0.04]]
    assert found == [pytest.approx(values, abs=0.008) for values in expected], "docs/decisions.md#binary-guard"
