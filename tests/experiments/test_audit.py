"""The printed tables, recomputed; the figures are those of the paper's version in experiments/published."""

from __future__ import annotations

import pytest

from experiments.audit import (
    NUM_PROBLEMS,
    AimeFit,
    PrintedRow,
    aime_fit,
    bootstrap_values,
    exponent_means,
    gain,
    impossible_values,
    is_bootstrapped,
    is_possible,
    num_cells_behind,
    printed_rows,
    repetitions,
    wrong_averages,
)
from experiments.published.tables import BENCHMARKS

ROWS = printed_rows()


def test_ten_averages_are_not_the_mean_of_their_row() -> None:
    found = {
        (row.pair, row.agent, row.method): (row.printed_average, round(row.average, 4)) for row in wrong_averages(ROWS)
    }
    state, size = "qwen3-4b+qwen3-4b-instruct", "qwen3-1.7b-base+qwen3-4b-base"
    model, large = "qwen3-4b-base+llama3.2-3b-instruct", "qwen3-4b-base+qwen3-8b-base"
    llamas, small = "llama3.2-1b-instruct+llama3.2-3b-instruct", "qwen3-1.7b-base+llama3.2-1b-instruct"
    assert found == {
        (state, "qwen3-4b-instruct", "hacpo"): (0.813, 0.8183),
        (size, "qwen3-1.7b-base", "gspo_x2"): (0.475, 0.4647),
        (model, "qwen3-4b-base", "naive"): (0.526, 0.5329),
        (large, "qwen3-4b-base", "naive"): (0.526, 0.5329),
        (large, "qwen3-4b-base", "hacpo"): (0.614, 0.6027),
        (llamas, "llama3.2-1b-instruct", "base"): (0.18, 0.175),
        (llamas, "llama3.2-1b-instruct", "gspo_x2"): (0.227, 0.2359),
        (small, "qwen3-1.7b-base", "gspo_x2"): (0.475, 0.4647),
        (small, "llama3.2-1b-instruct", "gspo_x2"): (0.227, 0.2359),
        (small, "llama3.2-1b-instruct", "naive"): (0.214, 0.2067),
    }


@pytest.mark.parametrize(
    ("printed_average", "is_wrong"), [(0.501, False), (0.499, False), (0.5011, True), (0.4989, True)]
)
def test_average_may_be_off_by_what_rounding_explains(printed_average: float, is_wrong: bool) -> None:
    row = PrintedRow("table1", "a+b", "a", "hacpo", (0.5,) * 7, printed_average)
    assert bool(wrong_averages([row])) == is_wrong


@pytest.mark.parametrize(
    ("tables", "against", "printed", "computed", "num_behind"),
    [
        (("table1",), "gspo", 3.20, 3.28, 0),  # the abstract's 3.3
        (("table1",), "gspo_x2", 3.33, 3.59, 0),
        (("table1",), "grpo", 2.90, 2.97, 0),
        (("table1",), "naive", 10.07, 10.04, 0),
        (("table1", "table7"), "gspo", 2.71, 2.65, 0),
        (("table1", "table7"), "gspo_x2", 2.82, 2.79, 2),
        (("table1", "table7"), "grpo", 2.59, 2.53, 0),
        (("table1", "table7"), "naive", 8.17, 8.06, 0),
        (("table7",), "gspo", 2.22, 2.02, 0),
    ],
)
def test_claimed_gain_recomputed(
    tables: tuple[str, ...], against: str, printed: float, computed: float, num_behind: int
) -> None:
    found = gain(ROWS, tables, against)
    assert (round(found.printed, 2), round(found.computed, 2), found.num_behind) == (printed, computed, num_behind)
    assert found.num_agents == 6 * len(tables)


def test_lead_over_twice_the_rollouts_turns_negative_for_the_smallest_agent() -> None:
    assert round(gain(ROWS, ("table7",), "gspo_x2").least, 2) == -0.77


def test_rows_of_different_trainings_that_agree_and_of_one_that_do_not() -> None:
    found = [(r.first.agent, r.first.method, r.num_equal, r.is_expected) for r in repetitions(ROWS)]
    assert found == [
        ("qwen3-4b-base", "naive", 4, False),
        ("qwen3-4b-base", "naive", 4, False),
        ("qwen3-4b-base", "naive", 7, False),
        ("llama3.2-3b-instruct", "naive", 7, False),
        ("llama3.2-1b-instruct", "base", 6, True),
    ]


@pytest.mark.parametrize(
    ("value", "num_problems", "possible"),
    [
        (0.267, 500, False),  # 133 / 500 = 0.266, 134 / 500 = 0.268
        (0.268, 500, True),
        (0.008, 272, False),  # 2 / 272 = 0.00735 is 0.007 either way, 3 / 272 = 0.01103
        (0.007, 272, True),
        (0.335, 30, False),  # 10 / 30 = 0.333
        (0.333, 30, True),
        (0.666, 30, True),  # 20 / 30, cut
        (0.667, 30, True),  # 20 / 30, rounded
        (0.0, 40, True),
        (1.0, 40, True),
    ],
)
def test_value_is_possible_if_a_whole_number_of_right_answers_gives_it(
    value: float, num_problems: int, possible: bool
) -> None:
    assert is_possible(value, num_problems) == possible


def test_impossible_values_by_benchmark() -> None:
    found = impossible_values(ROWS)
    assert {name: sum(f.benchmark == name for f in found) for name in NUM_PROBLEMS} == {
        "math500": 2,
        "math": 0,
        "gsm8k": 0,
        "aime2025": 40,
        "amc23": 0,
        "minerva": 6,
        "olympiadbench": 0,
    }
    values = {f.value for f in found if f.benchmark == "math500"}
    assert values == {0.267, 0.647}


def test_draws_that_hold_a_right_answer() -> None:
    values = bootstrap_values()
    assert {0, 1000} <= values
    assert min(values - {0}) == 584  # one right answer: 1,000 (1 - (29/30)^30) = 638, give or take
    assert values.isdisjoint(range(665, 838))  # two: 1,000 (1 - (28/30)^30) = 874
    assert values >= set(range(984, 1001))  # five or more
    assert len(values) == 151


@pytest.mark.parametrize(
    ("value", "possible"),
    [
        (0.0, True),
        (0.019, True),  # one problem with one right answer of 30: 584 / 30,000 = 0.0195, cut
        (0.018, False),  # and nothing less
        (0.021, True),
        (0.024, False),  # 664 / 30,000 = 0.0221 at most with one right answer, 838 / 30,000 = 0.0279 at least with two
        (0.033, True),
        (0.034, False),  # one problem gives 0.0333 at most, two 0.0389 at least
        (0.335, True),
        (1.0, True),
    ],
)
def test_bootstrapped_value_is_a_mean_over_problems(value: float, possible: bool) -> None:
    assert is_bootstrapped(value) == possible


def test_printed_aime_cells_are_no_counts_and_can_be_bootstrapped() -> None:
    assert aime_fit(ROWS) == AimeFit(
        num_cells=57, counts=17, bootstraps=57, numbers_by_count=41, numbers_by_bootstrap=973
    )
    assert all(is_possible(number / 1000, 900) for number in range(1001))  # an average over 30 x 30 answers


def test_cells_in_which_hacpo_is_behind() -> None:
    assert num_cells_behind(ROWS, ("table1", "table7"), "gspo") == (9, 12 * len(BENCHMARKS))
    assert num_cells_behind(ROWS, ("table1", "table7"), "gspo_x2") == (16, 84)


def test_chosen_exponents_are_the_best_of_table_4() -> None:
    means = exponent_means()
    best = {pair: max(found, key=lambda name: found[name]) for pair, found in means.items()}
    assert best == {
        "qwen3-1.7b-base+qwen3-4b-base": "hacpo_alpha1",
        "qwen3-4b-base+qwen3-8b-base": "hacpo_alpha3",
    }
    assert means["qwen3-4b-base+qwen3-8b-base"]["hacpo_alpha0"] == pytest.approx(0.768)
