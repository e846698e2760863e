"""Consistency checks of the paper's printed tables: averages, gains, counts and repeated rows, recomputed.

Every finding is arithmetic on the printed numbers; none explains how they came about.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from experiments.published.tables import AVERAGE, BEFORE, BENCHMARKS, printed_values
from hacpo_core.evaluation.metrics import NUM_DRAWS, bootstrap_draws

_BASELINE_METHODS = ("grpo", "gspo", "gspo_x2", "naive")
ALONE = (BEFORE, "grpo", "gspo", "gspo_x2")
"""rows that do not depend on the partner"""
NUM_PROBLEMS = {
    "math500": 500,
    "math": 5000,
    "gsm8k": 1319,
    "aime2025": 30,
    "amc23": 40,
    "minerva": 272,
    "olympiadbench": 675,
}
AIME_SAMPLES = 30
"""responses per problem of AIME 2025"""
MIN_EQUAL = 4
"""minimum number of equal values to report two rows of different experiments"""
LAST_DIGIT = 0.001
_NOISE = 1e-9  # rounding error of sums of decimal fractions


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A row of tables 1, 2, 3 or 7."""

    table: str
    pair: str
    agent: str
    method: str
    values: tuple[float, ...]
    """by benchmark, in the order of BENCHMARKS"""
    printed_average: float

    @property
    def average(self) -> float:
        """Mean of the printed values."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True)
class Gain:
    """HACPO's mean lead over a method, in points (1/100), over the agents of some tables.

    `printed` is of the printed averages, `computed` of the means of their rows. `num_behind` counts the agents whose
    computed lead is negative, `least` is the smallest computed lead.
    """

    tables: tuple[str, ...]
    against: str
    num_agents: int
    printed: float
    computed: float
    num_behind: int
    least: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """Two rows of one agent and method that share values.

    `is_expected` is true of rows that do not depend on the partner: these must be equal, all others must not be.
    """

    first: PrintedRow
    second: PrintedRow
    num_equal: int
    is_expected: bool


@dataclass(frozen=True, slots=True)
class AimeFit:
    """Number of printed AIME 2025 cells that each reading of best@30 can produce.

    `counts` is for the share of problems solved by any of 30 responses, `bootstraps` for verl's best@30.
    `numbers_by_*` say how many of the 1,001 three-digit numbers from 0 to 1 each reading can produce.
    """

    num_cells: int
    counts: int
    bootstraps: int
    numbers_by_count: int
    numbers_by_bootstrap: int


@dataclass(frozen=True, slots=True)
class ImpossibleValue:
    """A value that no number of correct responses on the benchmark gives, whether rounded or truncated."""

    row: PrintedRow
    benchmark: str
    value: float


def printed_rows() -> list[PrintedRow]:
    """The rows of tables 1, 2, 3 and 7."""
    by_row: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for cell in printed_values():
        if cell.table != "table4":
            by_row.setdefault((cell.table, cell.pair, cell.agent, cell.method), {})[cell.benchmark] = cell.value
    return [
        PrintedRow(*key, tuple(values[name] for name in BENCHMARKS), values[AVERAGE]) for key, values in by_row.items()
    ]


def wrong_averages(rows: Sequence[PrintedRow]) -> list[PrintedRow]:
    """Rows whose printed average is not the mean of their values.

    If the values and the average are all rounded, or all truncated, to three digits, they can differ by at most one
    unit of the last digit. Only larger differences are reported.
    """
    return [row for row in rows if abs(row.average - row.printed_average) > LAST_DIGIT + _NOISE]


def gain(rows: Sequence[PrintedRow], tables: Sequence[str], against: str) -> Gain:
    """HACPO's mean lead over a method.

    Args:
        rows: of the printed tables.
        tables: tables whose agents are averaged; an agent counts once per partner.
        against: the other method.
    """
    leads = _against(rows, tables, against)
    computed = [100 * (ours.average - theirs.average) for ours, theirs in leads]
    printed = [100 * (ours.printed_average - theirs.printed_average) for ours, theirs in leads]
    return Gain(
        tables=tuple(tables),
        against=against,
        num_agents=len(leads),
        printed=sum(printed) / len(leads),
        computed=sum(computed) / len(leads),
        num_behind=sum(lead < -_NOISE for lead in computed),
        least=min(computed),
    )


def gains(rows: Sequence[PrintedRow]) -> list[Gain]:
    """HACPO's lead over every baseline, in Table 1, in Table 7 and in both."""
    return [
        gain(rows, tables, against)
        for tables in (("table1",), ("table7",), ("table1", "table7"))
        for against in _BASELINE_METHODS
    ]


def repetitions(rows: Sequence[PrintedRow]) -> list[Repetition]:
    """Rows of one agent and method in two pairs that differ but should not, or agree but should not."""
    repeated = []
    for i, first in enumerate(rows):
        for second in rows[i + 1 :]:
            if (first.agent, first.method) != (second.agent, second.method) or first.pair == second.pair:
                continue
            num_equal = sum(a == b for a, b in zip(first.values, second.values, strict=True))
            is_expected = first.method in ALONE
            if (num_equal < len(BENCHMARKS)) if is_expected else (num_equal >= MIN_EQUAL):
                repeated.append(Repetition(first, second, num_equal, is_expected))
    return repeated


def impossible_values(rows: Sequence[PrintedRow]) -> list[ImpossibleValue]:
    """Values that no number of correct responses gives; repeated rows that do not depend on the partner count once."""
    return [
        ImpossibleValue(row, benchmark, value)
        for row, benchmark, value in _different_cells(rows)
        if not is_possible(value, NUM_PROBLEMS[benchmark])
    ]


def _different_cells(rows: Sequence[PrintedRow]) -> list[tuple[PrintedRow, str, float]]:
    """Row, benchmark and value of every cell, without repetitions of cells that do not depend on the partner."""
    cells: dict[tuple[str, ...], tuple[PrintedRow, str, float]] = {}
    for row in rows:
        for benchmark, value in zip(BENCHMARKS, row.values, strict=True):
            partner = "" if row.method in ALONE else row.pair
            cells.setdefault((row.agent, row.method, partner, benchmark, str(value)), (row, benchmark, value))
    return list(cells.values())


def is_possible(value: float, num_problems: int) -> bool:
    """Whether `value` is count / num_problems for an integer count, rounded or truncated to three digits."""
    return any(_prints_as(count / num_problems, value) for count in _near(value, num_problems))


def aime_fit(rows: Sequence[PrintedRow]) -> AimeFit:
    """Compare the printed AIME 2025 cells with the two readings of best@30."""
    values = [value for _, benchmark, value in _different_cells(rows) if benchmark == "aime2025"]
    numbers = [number / 1000 for number in range(1001)]
    return AimeFit(
        num_cells=len(values),
        counts=sum(is_possible(value, NUM_PROBLEMS["aime2025"]) for value in values),
        bootstraps=sum(is_bootstrapped(value) for value in values),
        numbers_by_count=sum(is_possible(number, NUM_PROBLEMS["aime2025"]) for number in numbers),
        numbers_by_bootstrap=sum(is_bootstrapped(number) for number in numbers),
    )


def is_bootstrapped(value: float) -> bool:
    """Whether verl's best@30 over the 30 problems of AIME 2025 can be `value`, rounded or truncated to three digits.

    best@30 is the sum over problems of one of `bootstrap_values`, divided by NUM_DRAWS times the number of problems.
    """
    whole = NUM_DRAWS * NUM_PROBLEMS["aime2025"]
    sums = _bootstrap_sums()
    return any(sums >> total & 1 and _prints_as(total / whole, value) for total in _near(value, whole))


@cache
def bootstrap_values() -> frozenset[int]:
    """All possible numbers of the NUM_DRAWS draws that contain a correct response, over all sets of correct ones.

    Exact: tries all sets of 1, 2, 3 ... correct responses among 30. A larger set misses no more draws than its subsets,
    so the search ends once the smallest value of a size and all values above it have been found.
    """
    drawn_R = np.bitwise_or.reduce(1 << bootstrap_draws(AIME_SAMPLES), axis=1)
    reachable = {0}
    for size in range(1, AIME_SAMPLES + 1):
        correct_S = np.asarray([sum(1 << i for i in s) for s in itertools.combinations(range(AIME_SAMPLES), size)])
        values = {
            int(num_correct)
            for part in np.array_split(correct_S, len(correct_S) // 1000 + 1)
            for num_correct in ((part[:, None] & drawn_R) != 0).sum(axis=1)
        }
        reachable |= values
        if reachable.issuperset(range(min(values), NUM_DRAWS + 1)):
            break
    return frozenset(reachable)


@cache
def _bootstrap_sums() -> int:
    """All sums of one of `bootstrap_values` per problem, as a bit set: bit n is set if n is such a sum."""
    sums = 1
    for _ in range(NUM_PROBLEMS["aime2025"]):
        reached = 0
        for value in bootstrap_values():
            reached |= sums << value
        sums = reached
    return sums


def _near(value: float, whole: int) -> range:
    """Numerators over the denominator `whole` that may print as `value`."""
    return range(
        max(0, math.floor((value - LAST_DIGIT) * whole)), min(whole, math.ceil((value + LAST_DIGIT) * whole)) + 1
    )


def _prints_as(exact: float, value: float) -> bool:
    """Whether a number, rounded or truncated to three digits, is `value`."""
    return abs(exact - value) <= LAST_DIGIT / 2 + _NOISE or -_NOISE <= exact - value < LAST_DIGIT - _NOISE


def num_cells_behind(rows: Sequence[PrintedRow], tables: Sequence[str], against: str) -> tuple[int, int]:
    """Number of cells (agent x benchmark) in which HACPO is printed below a method, and the total number."""
    leads = _against(rows, tables, against)
    pairs = [pair for ours, theirs in leads for pair in zip(ours.values, theirs.values, strict=True)]
    return sum(a < b for a, b in pairs), len(pairs)


def _against(rows: Sequence[PrintedRow], tables: Sequence[str], method: str) -> list[tuple[PrintedRow, PrintedRow]]:
    """HACPO's rows of some tables, each with the other method's row of the same agent."""
    by_key = {(row.table, row.pair, row.agent, row.method): row for row in rows}
    ours = [row for row in rows if row.table in tables and row.method == "hacpo"]
    return [(row, by_key[row.table, row.pair, row.agent, method]) for row in ours]


def exponent_means() -> dict[str, dict[str, float]]:
    """Table 4: by pair and method, the mean over the pair's agents."""
    by_pair: dict[str, dict[str, list[float]]] = {}
    for cell in printed_values():
        if cell.table == "table4":
            by_pair.setdefault(cell.pair, {}).setdefault(cell.method, []).append(cell.value)
    return {
        pair: {method: sum(values) / len(values) for method, values in methods.items()}
        for pair, methods in by_pair.items()
    }
