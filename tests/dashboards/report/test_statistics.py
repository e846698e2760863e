"""Intervals and the paired bootstrap, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dashboards.report.statistics import (
    NUM_PAIRED_RESAMPLES,
    Difference,
    holm,
    paired_bootstrap,
    paired_t,
    summarize,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)]
)
def test_t_quantile_is_that_of_the_printed_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_interval_over_three_seeds() -> None:
    found = summarize([0.6, 0.7, 0.8])
    assert found.mean == pytest.approx(0.7)
    assert found.half_width == pytest.approx(4.3027 * 0.1 / math.sqrt(3), abs=1e-5)


def test_one_seed_has_no_interval() -> None:
    assert math.isnan(summarize([0.6]).half_width)


def test_same_difference_everywhere_cannot_be_chance() -> None:
    found = paired_bootstrap({"math": np.full((2, 3, 5), 0.25)})
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)
    assert found.p_value == 2 / (NUM_PAIRED_RESAMPLES + 1)
    assert (found.num_seeds, found.num_problems, found.num_dropped) == (3, 5, 0)


def test_difference_of_zero_is_never_significant() -> None:
    assert paired_bootstrap({"math": np.array([[[1.0, -1.0, 0.0]]])}).p_value == 1.0


def test_one_of_two_problems_is_better_by_a_coin_toss() -> None:
    # Two draws of {1, 0}: mean 0, 1/2, 1 with chance 1/4, 1/2, 1/4. At or below 0: a quarter; twice that.
    found = paired_bootstrap({"math": np.array([[[1.0, 0.0]]])})
    assert found.value == 0.5
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.p_value == pytest.approx(0.5, abs=0.03)


def test_three_of_four_problems() -> None:
    # Four draws, at or below 0 only without a single one: (1/4)^4; twice that.
    found = paired_bootstrap({"math": np.array([[[1.0, 1.0, 1.0, 0.0]]])})
    assert found.p_value == pytest.approx(2 / 256, abs=0.004)


def test_p_value_is_of_the_intervals_own_resamples() -> None:
    # Ten draws of {1 nine times, -3}: the mean is 1 - 0.4 j with j of chance C(10, j) 0.1^j 0.9^(10 - j), at or below 0
    # for j >= 3: 0.0702. Resamples shifted to 0 are as far as 0.6 from it for j >= 3 only, and would give half of it.
    found = paired_bootstrap({"math": np.array([[[1.0] * 9 + [-3.0]]])})
    assert found.p_value == pytest.approx(2 * 0.0702, abs=0.03)


@pytest.mark.parametrize("shift", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, -0.2, -0.3, -0.4])
def test_p_value_is_below_five_percent_where_the_interval_leaves_zero_out(shift: float) -> None:
    skewed = np.random.default_rng(1).exponential(size=(1, 1, 40)) - 1.0
    found = paired_bootstrap({"math": skewed + shift})
    assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0)


def test_all_agents_get_the_same_problems() -> None:
    # What one agent gains on a problem the other loses: drawn apart, the resamples would spread.
    mirrored = np.array([[[1.0, 0.0, 1.0, 0.0]], [[-1.0, 0.0, -1.0, 0.0]]])
    found = paired_bootstrap({"math": mirrored})
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_all_benchmarks_get_the_same_seeds() -> None:
    gain = np.array([[[1.0], [0.0]]])
    found = paired_bootstrap({"math": gain, "gsm8k": -gain})
    assert (found.low, found.high) == (0.0, 0.0)


def test_seeds_vary_where_problems_do_not() -> None:
    found = paired_bootstrap({"math": np.array([[[1.0, 1.0], [0.0, 0.0]]])})
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_benchmarks_count_alike_whatever_their_size() -> None:
    found = paired_bootstrap({"small": np.full((1, 1, 2), 1.0), "large": np.zeros((1, 1, 1000))})
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_problem_that_one_seed_does_not_know_is_dropped_for_all() -> None:
    found = paired_bootstrap({"math": np.array([[[1.0, 0.0], [1.0, np.nan]]])})
    assert (found.value, found.num_problems, found.num_dropped) == (1.0, 1, 1)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected each to have a problem scored"):
        paired_bootstrap({"math": np.array([[[np.nan]]])})


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .2 times 4 3 2 1: .04 .06 .06 .2, each at least the one before
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.04]) == [0.04]


def test_power_by_hand() -> None:
    def of(standard_error: float) -> float:
        return Difference(0.0, 0.0, 0.0, 1.0, 6, 256, 0, standard_error).power(0.01)

    assert of(0.01 / 2.8) == pytest.approx(0.8, abs=1e-2), "2.8 standard errors: 80 %"
    assert of(1.0) == pytest.approx(0.05, abs=1e-3), "nothing but the level of the test"
    assert of(1e-4) == pytest.approx(1.0)
    assert math.isnan(of(0.0))


def test_spread_between_seeds_is_told_apart_from_that_of_problems() -> None:
    found = paired_bootstrap({"math": np.array([[[1.0, -1.0], [1.0, -1.0], [1.0, -1.0]]])})
    assert found.seed_std == 0.0
    assert found.standard_error == pytest.approx(math.sqrt(1 / 2), abs=0.03)
    seeds = paired_bootstrap({"math": np.array([[[0.0, 0.0], [1.0, 1.0]]])})
    assert seeds.seed_std == pytest.approx(math.sqrt(0.5))
    assert math.isnan(paired_bootstrap({"math": np.array([[[1.0, 0.0]]])}).seed_std)


def test_equal_differences_have_the_p_value_of_a_sign_test() -> None:
    assert paired_t([5.0, 5.0]).p_value == 0.5
    assert paired_t([5.0] * 6).p_value == 2 / 2**6
    assert paired_t([0.0, 0.0]).p_value == 1.0
    assert paired_t([4.9, 5.1]).p_value < 0.05
