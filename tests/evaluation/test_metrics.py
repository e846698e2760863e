"""Figures of an evaluation against numbers worked out by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hacpo_core.evaluation.metrics import (
    average_at_k,
    best_at_k,
    bootstrap_best_at_k,
    bootstrap_draws,
    estimates,
    mean_with_interval,
    pass_at,
)

NAN = math.nan
REWARD_PK = np.array(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [1.0, 1.0, 1.0, 0.0],
        [0.0, NAN, 1.0, 0.0],
        [0.0, NAN, 0.0, 0.0],
        [NAN, NAN, NAN, NAN],
    ]
)


def test_average_is_over_scored_samples_alone() -> None:
    np.testing.assert_allclose(average_at_k(REWARD_PK), [0.25, 0.0, 0.75, 1 / 3, 0.0, NAN])


def test_best_is_unknown_where_a_sample_is_unscored() -> None:
    np.testing.assert_array_equal(best_at_k(REWARD_PK), [1.0, 0.0, 1.0, NAN, NAN, NAN])


@pytest.mark.parametrize("metric", [best_at_k, bootstrap_best_at_k])
def test_unscored_samples_raise_no_best_of_k(metric: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> None:
    # Half of the problems have a right answer first; every second sample of each is unscored at random.
    random = np.random.RandomState(0)
    complete = np.zeros((400, 2))
    complete[:200, 0] = 1.0
    holed = complete.copy()
    holed[random.rand(400) < 0.5, 1] = NAN
    expected, known = metric(complete).mean(), metric(holed)
    assert np.nanmean(known) == pytest.approx(expected, abs=0.05)
    assert 150 < np.isnan(known).sum() < 250
    few = metric(np.array([[1, NAN], [0, NAN], [0, NAN], [0, NAN]]))
    assert np.isnan(few).all(), "a right answer does not keep its problem while wrong ones leave"


def test_draws_are_those_that_verl_makes_one_after_another() -> None:
    generator = np.random.RandomState(42)
    one_by_one = [generator.choice(30, size=30, replace=True) for _ in range(1000)]
    np.testing.assert_array_equal(bootstrap_draws(30), one_by_one)
    assert one_by_one[0][:5].tolist() == [6, 19, 28, 14, 10]  # np.random.seed(42); np.random.choice(30, 30)


def test_bootstrapped_best_is_the_share_of_draws_with_a_right_sample() -> None:
    # Two samples: the draws are (0,0), (0,1), (1,0), (1,1). One right: all but those of the wrong one twice.
    draws = bootstrap_draws(2)
    has_first, has_second = (draws == 0).any(axis=1).mean(), (draws == 1).any(axis=1).mean()
    found = bootstrap_best_at_k(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(found, [has_first, has_second, 1.0, 0.0])
    assert has_first == pytest.approx(0.75, abs=0.04)
    # One of 30 right: 1 - (29/30)^30 = 0.6383; three: 1 - (27/30)^30 = 0.9576. A standard error is 0.015 and 0.006.
    rewards = np.zeros((2, 30))
    rewards[0, 4] = rewards[1, :3] = 1.0
    assert bootstrap_best_at_k(rewards) == pytest.approx([0.6383, 0.9576], abs=0.03)
    assert best_at_k(rewards).tolist() == [1.0, 1.0]


def test_pass_at_2_is_one_minus_the_share_of_pairs_without_a_right_answer() -> None:
    # Pairs of 4 samples: 6. With 1 right, 3 pairs hold none; with 3 right, 0. Of 3 scored with 1 right: 1 of 3 pairs.
    np.testing.assert_allclose(pass_at(REWARD_PK, k=2), [0.5, 0.0, 1.0, 2 / 3, 0.0, NAN])


def test_pass_at_k_is_unbiased() -> None:
    """The mean over all ways to draw 5 of 8 samples is the share of 3-subsets of the 8 with a right one."""
    from itertools import combinations

    samples = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    drawn = np.array([list(samples[list(chosen)]) for chosen in combinations(range(8), 5)])
    assert pass_at(drawn, k=3).mean() == pytest.approx(1 - 20 / 56)


def test_interval_of_equal_values_is_a_point_and_of_none_is_unknown() -> None:
    estimate = mean_with_interval("avg@1", np.array([1.0, 1.0, NAN]), seed=0)
    assert (estimate.value, estimate.low, estimate.high, estimate.num_problems) == (1.0, 1.0, 1.0, 2)
    empty = mean_with_interval("avg@1", np.array([NAN]), seed=0)
    assert math.isnan(empty.value)
    assert math.isnan(empty.low)
    assert empty.num_problems == 0


def test_interval_is_that_of_a_binomial_share() -> None:
    value_P = np.array([1.0] * 160 + [0.0] * 240)
    estimate = mean_with_interval("avg@1", value_P, seed=3)
    half = 1.96 * math.sqrt(0.4 * 0.6 / 400)
    assert estimate.value == pytest.approx(0.4)
    assert estimate.low == pytest.approx(0.4 - half, abs=0.005)
    assert estimate.high == pytest.approx(0.4 + half, abs=0.005)
    assert mean_with_interval("avg@1", value_P, seed=3) == estimate
    assert mean_with_interval("avg@1", value_P, seed=4) != estimate


def test_one_sample_gives_avg_1_and_several_give_best_and_pass() -> None:
    assert [estimate.metric for estimate in estimates(REWARD_PK[:, :1], seed=0)] == ["avg@1"]
    found = {estimate.metric: estimate for estimate in estimates(np.repeat(REWARD_PK, 2, axis=1), seed=0)}
    assert list(found) == ["avg@8", "best@8", "bootstrap_best@8", "pass@2", "pass@4"]
    assert found["avg@8"].value == pytest.approx((0.25 + 0.75 + 1 / 3) / 5)
    assert found["best@8"].value == pytest.approx(2 / 3)
    assert (found["avg@8"].num_problems, found["best@8"].num_problems) == (5, 3)


def test_pass_at_1_is_the_average_and_pass_at_n_is_the_best_or_unknown() -> None:
    np.testing.assert_allclose(pass_at(REWARD_PK[:3], k=1), average_at_k(REWARD_PK[:3]))
    np.testing.assert_array_equal(pass_at(REWARD_PK, k=4), best_at_k(REWARD_PK))
