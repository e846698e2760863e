"""Intervals over seeds, and the difference of two methods over seeds and problems: by hand, and simulated."""

import math

import numpy as np
import pytest
from scipy.special import expit

from dashboards.report.statistics import crossed_difference, holm, summarize, t_quantile


def test_t_quantile_is_that_of_the_printed_tables() -> None:
    for degrees, quantile in ((1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)):
        assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_interval_over_seeds() -> None:
    found = summarize([0.6, 0.7, 0.8])
    assert found.mean == pytest.approx(0.7)
    assert found.half_width == pytest.approx(4.3027 * 0.1 / math.sqrt(3), abs=1e-5)
    assert math.isnan(summarize([0.6]).half_width)


def test_one_seed_has_the_t_interval_over_problems() -> None:
    found = crossed_difference({"math": np.array([[[1.0, 1.0, 1.0, 0.0]]])})
    width = 3.1824 * 0.5 / 2  # t(3), standard deviation 1/2
    assert (found.value, found.num_seeds, found.num_problems) == (0.75, 1, 4)
    assert (found.low, found.high) == (pytest.approx(0.75 - width, abs=1e-4), pytest.approx(0.75 + width, abs=1e-4))
    assert found.p_value == pytest.approx(0.0577, abs=1e-4), "2 T(3)(-3)"


def test_where_all_problems_agree_seeds_have_their_t_interval() -> None:
    found = crossed_difference({"math": np.array([[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]])})
    assert (found.value, found.high) == (2.0, pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4))
    assert found.p_value == pytest.approx(0.0742, abs=1e-4), "2 T(2)(-2 sqrt(3))"


def test_problems_and_seeds_add_their_parts() -> None:
    # Additive: means of seeds 0, 2, of problems 0, 1, 2; no rest. MSs / SP = 2 / 2, MSp / SP = 1 / 3.
    found = crossed_difference({"math": np.array([[[-1.0, 0.0, 1.0], [1.0, 2.0, 3.0]]])})
    assert found.value == 1.0
    assert found.high == pytest.approx(1 + math.sqrt(12.7062**2 * 1 + 4.3027**2 / 3), abs=1e-3)


def test_interval_is_never_narrower_than_over_problems_alone() -> None:
    # Both seeds have the same mean, and the rest is larger than what problems add.
    found = crossed_difference({"math": np.array([[[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0]]])})
    assert found.high == pytest.approx(4.3027 * np.std([0.0, 0.5, -0.5], ddof=1) / math.sqrt(3), abs=1e-4)


def test_p_value_is_below_five_percent_where_the_interval_leaves_zero_out() -> None:
    noise = np.random.default_rng(1).normal(size=(1, 4, 40))
    for shift in np.linspace(-1, 1, 21):
        found = crossed_difference({"math": noise + shift})
        assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0), shift
    assert crossed_difference({"math": np.array([[[1.0, -1.0, 0.0]]])}).p_value == 1.0
    same = crossed_difference({"math": np.full((2, 3, 5), 0.25)})
    assert (same.low, same.high) == (0.25, 0.25) and same.p_value < 1e-9


def test_agents_share_problems_and_benchmarks_share_seeds() -> None:
    # What one agent gains on a problem, or one benchmark with a seed, the other loses: apart, there would be a spread.
    gain = np.array([[1.0, 0.0, 1.0, 0.0]])
    found = crossed_difference({"math": np.stack([gain, -gain])})
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    by_seed = np.array([[[1.0], [0.0]]])
    found = crossed_difference({"math": by_seed, "gsm8k": -by_seed})
    assert (found.low, found.high) == (0.0, 0.0)


def test_benchmarks_count_alike_and_unscored_problems_are_dropped_for_all() -> None:
    found = crossed_difference({"small": np.full((1, 1, 2), 1.0), "large": np.zeros((1, 1, 1000))})
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    found = crossed_difference({"math": np.array([[[1.0, 0.0], [1.0, np.nan]]])})
    assert (found.value, found.num_problems, found.num_dropped) == (1.0, 1, 1)


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .2 times 4 3 2 1: .04 .06 .06 .2, each at least the one before
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.slow
def test_equal_methods_are_covered_and_seldom_judged() -> None:
    """Binary or averaged verdicts on 256 problems; seeds and problems shift each method; seeds may share models."""
    rng, failures, num = np.random.default_rng(51), [], 1500
    regimes = [(k, shared, of_problem) for k, of_problem in ((1, 0.0), (1, 1.5), (8, 0.6)) for shared in (0.0, 0.8)]
    for num_S in (2, 3, 6, 12):
        for spread in (0.0, 0.025, 0.055, 0.084):
            excluded = []
            for k, shared, of_problem in regimes:
                for _ in range(num // len(regimes)):
                    difficulty_P = rng.normal(0, 1.8, 256)
                    slope = (expit(difficulty_P) * expit(-difficulty_P)).mean()  # points of accuracy per logit
                    common_S1 = rng.normal(0, math.sqrt(shared), (num_S, 1))
                    scores = []
                    for _ in range(2):
                        seed_S1 = common_S1 + rng.normal(0, math.sqrt(1 - shared), (num_S, 1))
                        logit_SP = difficulty_P + rng.normal(0, of_problem, 256) + spread / slope * seed_S1
                        scores.append(rng.binomial(k, expit(logit_SP)) / k)
                    found = crossed_difference({"math": (scores[0] - scores[1])[None]})
                    assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0)
                    excluded.append(found.p_value < 0.05)
            if np.mean(excluded) > 0.06:  # so that at least .94 are covered
                failures.append(f"{num_S} seeds, spread {spread}: {np.mean(excluded):.3f} false verdicts")
    assert not failures, failures
