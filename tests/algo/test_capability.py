"""Capabilities, their window, and the ratios between agents.

Shapes: P problem, A agent, G response, K step of the window.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.capability import capability_ratios, mean_reward, positive_rate, windowed_capability

NO_VERDICT = math.nan


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def capability(
    nested: list[list[list[float]]], measure: Callable[[Tensor, Tensor], Tensor] = mean_reward
) -> list[float]:
    reward_PAG = tensor(nested)
    return list(measure(reward_PAG, ~reward_PAG.isnan()).tolist())


def test_capability_is_the_mean_reward_of_the_whole_batch() -> None:
    assert capability([[[1, 0], [0, 0]], [[1, 1], [1, 0]]]) == [0.75, 0.25]


def test_capability_weighs_scored_responses_equally_and_not_problems() -> None:
    found = capability([[[1, 1, 1]], [[0, NO_VERDICT, NO_VERDICT]]])
    assert found == pytest.approx([0.75], abs=1e-15)  # the mean of the problems' means is 0.5, with zeros 0.5


def test_positive_rate_counts_rewards_above_zero() -> None:
    rewards: list[list[list[float]]] = [[[0.5, 0.25, 0.0, 0.0]]]
    assert capability(rewards, positive_rate) == [0.5]
    assert capability(rewards) == [0.1875]


def test_agent_without_any_verdict_has_no_capability() -> None:
    with pytest.raises(ValueError, match=r"no scored response.*\[2, 0\]"):
        capability([[[1, 0], [NO_VERDICT, NO_VERDICT]]])


def test_window_averages_its_steps() -> None:
    found_A = windowed_capability(tensor([[0.2, 0.4], [0.4, 0.8], [0.9, 0.0]]))
    assert found_A.tolist() == pytest.approx([0.5, 0.4], abs=1e-15)


def test_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        windowed_capability(torch.empty(0, 2))


def test_ratio_is_the_learners_capability_over_the_samplers() -> None:
    found = capability_ratios(tensor([0.6, 0.3, 0.4]))
    expected = [[1.0, 2.0, 1.5], [0.5, 1.0, 0.75], [0.6666666666666667, 1.3333333333333333, 1.0]]
    torch.testing.assert_close(found, tensor(expected), rtol=0.0, atol=1e-15)


def test_ratio_is_clipped_on_both_sides() -> None:
    found = capability_ratios(tensor([0.9, 0.05]))  # 18 and 1 / 18
    assert found.tolist() == [[1.0, 10.0], [0.1, 1.0]]


@pytest.mark.parametrize("least_able", [0.0, -3.0])
def test_agent_that_scores_nothing_divides_by_no_zero(least_able: float) -> None:
    found = capability_ratios(tensor([least_able, 0.5]))
    assert found.tolist() == [[1.0, 0.1], [10.0, 1.0]]


def test_agents_that_all_score_nothing_are_equal() -> None:
    found = capability_ratios(tensor([0.0, 0.0, 0.0]))
    assert found.tolist() == [[1.0] * 3] * 3
