"""Statistics of one problem's rewards: which mean, which standard deviation, and who is left out.

Shapes: P problem, A agent, G response.
"""

import math

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.groups import agent_mean, agent_std, is_jointly_uniform, is_uniform, joint_std

NO_VERDICT = math.nan


def rewards(nested: list[list[list[float]]]) -> tuple[Tensor, Tensor]:
    """reward_PAG and is_scored_PAG; NO_VERDICT marks a response without a verdict."""
    reward_PAG = torch.tensor(nested, dtype=torch.float64)
    return reward_PAG, ~reward_PAG.isnan()


def test_mean_is_per_problem_and_per_agent() -> None:
    mean_PA = agent_mean(*rewards([[[1, 0, 0, 1], [1, 1, 1, 0]], [[0, 0, 0, 1], [2, 2, 2, 2]]]))
    assert mean_PA.tolist() == [[0.5, 0.75], [0.25, 2.0]]


def test_unscored_response_is_no_zero_in_the_mean() -> None:
    mean_PA = agent_mean(*rewards([[[1, NO_VERDICT, 0, 1], [1, NO_VERDICT, NO_VERDICT, NO_VERDICT]]]))
    assert mean_PA[0].tolist() == pytest.approx([2 / 3, 1.0], abs=1e-15)


def test_agent_without_any_verdict_has_mean_and_deviation_zero_and_no_nan() -> None:
    group = rewards([[[NO_VERDICT, NO_VERDICT], [1, 0]]])
    assert agent_mean(*group).tolist() == [[0.0, 0.5]]
    assert agent_std(*group)[0, 0] == 0.0


def test_deviation_divides_by_one_less_than_the_number_of_responses() -> None:
    std_PA = agent_std(*rewards([[[1, 0, 0, 1], [1, 1, 1, 0]]]))
    assert std_PA[0].tolist() == pytest.approx([0.5773502691896257, 0.5], abs=1e-15)  # ddof 0: 0.5 and 0.433


def test_unscored_response_counts_neither_above_nor_below_the_fraction() -> None:
    std_PA = agent_std(*rewards([[[1, NO_VERDICT, 0, NO_VERDICT]]]))
    assert std_PA.item() == pytest.approx(0.7071067811865476, abs=1e-15)


def test_joint_deviation_is_that_of_all_rewards_and_not_a_mean_of_deviations() -> None:
    # mean 5/8, squares 5 (3/8)^2 + 3 (5/8)^2 = 1.875, over 8 - 1; the agents' own deviations average to 0.5387
    std_P = joint_std(*rewards([[[1, 0, 0, 1], [1, 1, 1, 0]]]))
    assert std_P.item() == pytest.approx(0.5175491695067657, abs=1e-15)


def test_deviation_of_a_single_reward_is_zero() -> None:
    assert agent_std(*rewards([[[3.0]]])).item() == 0.0
    assert joint_std(*rewards([[[NO_VERDICT, 3.0]]])).item() == 0.0


def test_equal_rewards_are_uniform_whatever_their_rounding_error() -> None:
    group = rewards([[[0.1, 0.1, 0.1], [0.1, 0.1, 0.2]]])
    assert agent_std(*group)[0, 0] > 0.0  # the mean of three 0.1 is not 0.1
    assert is_uniform(*group).tolist() == [[True, False]]


def test_group_with_fewer_than_two_verdicts_is_uniform() -> None:
    group = rewards([[[NO_VERDICT, NO_VERDICT], [1, NO_VERDICT]]])
    assert is_uniform(*group).tolist() == [[True, True]]
    assert is_jointly_uniform(*group).tolist() == [True]


def test_jointly_uniform_means_equal_across_agents_too() -> None:
    group = rewards([[[1, 1], [0, 0]], [[1, 1], [1, NO_VERDICT]]])
    assert is_uniform(*group).all()
    assert is_jointly_uniform(*group).tolist() == [False, True]
