"""What the paper's printed tables say about themselves: averages, gains, counts and rows that can be recomputed.

Nothing here judges why a number is as it is; every finding is arithmetic on what is printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.published.tables import AVERAGE, BEFORE, BENCHMARKS, printed_values

BASELINES = ("grpo", "gspo", "gspo_x2", "naive")
ALONE = (BEFORE, "grpo", "gspo", "gspo_x2")
"""Rows that do not depend on the partner."""
NUM_PROBLEMS = {
    "math500": 500,
    "math": 5000,
    "gsm8k": 1319,
    "aime2025": 30,
    "amc23": 40,
    "minerva": 272,
    "olympiadbench": 675,
}
LEAST_EQUAL = 4
"""equal values from which rows of different trainings are named"""
LAST_DIGIT = 0.001
_NOISE = 1e-9  # of sums of decimal fractions


@dataclass(frozen=True, slots=True)
class Row:
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

    first: Row
    second: Row
    num_equal: int
    is_expected: bool


@dataclass(frozen=True, slots=True)
class ImpossibleValue:
    """A value that no whole number of right answers among the benchmark's problems gives, rounded or cut."""

    row: Row
    benchmark: str
    value: float


def printed_rows() -> list[Row]:
    """Tables 1, 2, 3 and 7 row by row."""
    by_row: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for cell in printed_values():
        if cell.table != "table4":
            by_row.setdefault((cell.table, cell.pair, cell.agent, cell.method), {})[cell.benchmark] = cell.value
    return [Row(*key, tuple(found[name] for name in BENCHMARKS), found[AVERAGE]) for key, found in by_row.items()]


def wrong_averages(rows: Sequence[Row]) -> list[Row]:
    """Rows whose printed average is not the mean of their values.

    Seven values and an average, each rounded or each cut to three digits, can be apart by up to one unit of the last
    digit; what is beyond that cannot be explained so.
    """
    return [row for row in rows if abs(row.average - row.printed_average) > LAST_DIGIT + _NOISE]


def gain(rows: Sequence[Row], tables: Sequence[str], against: str) -> Gain:
    """HACPO's mean lead over a method.

    Args:
        rows: of the printed tables.
        tables: the tables whose agents are averaged, one agent and partner counting once.
        against: method.
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


def gains(rows: Sequence[Row]) -> list[Gain]:
    """HACPO's lead over every baseline: over Table 1, over Table 7, over both."""
    return [
        gain(rows, tables, against)
        for tables in (("table1",), ("table7",), ("table1", "table7"))
        for against in BASELINES
    ]


def repetitions(rows: Sequence[Row]) -> list[Repetition]:
    """Rows of one agent and method in two pairs that differ where they must not, or agree where they must not."""
    found = []
    for i, first in enumerate(rows):
        for second in rows[i + 1 :]:
            if (first.agent, first.method) != (second.agent, second.method) or first.pair == second.pair:
                continue
            num_equal = sum(a == b for a, b in zip(first.values, second.values, strict=True))
            is_expected = first.method in ALONE
            if (num_equal < len(BENCHMARKS)) if is_expected else (num_equal >= LEAST_EQUAL):
                found.append(Repetition(first, second, num_equal, is_expected))
    return found


def impossible_values(rows: Sequence[Row]) -> list[ImpossibleValue]:
    """Values of no whole number of right answers, rows that do not depend on the partner once."""
    found: dict[tuple[str, ...], ImpossibleValue] = {}
    for row in rows:
        for benchmark, value in zip(BENCHMARKS, row.values, strict=True):
            if not is_possible(value, NUM_PROBLEMS[benchmark]):
                partner = "" if row.method in ALONE else row.pair
                found.setdefault(
                    (row.agent, row.method, partner, benchmark, str(value)), ImpossibleValue(row, benchmark, value)
                )
    return list(found.values())


def is_possible(value: float, num_problems: int) -> bool:
    """Whether `value` is count / num_problems for a whole count, rounded or cut to three digits."""
    return any(
        abs(count / num_problems - value) <= LAST_DIGIT / 2 + _NOISE
        or -_NOISE <= count / num_problems - value < LAST_DIGIT - _NOISE
        for count in range(math.floor(value * num_problems), math.ceil((value + LAST_DIGIT) * num_problems) + 1)
    )


def num_cells_behind(rows: Sequence[Row], tables: Sequence[str], against: str) -> tuple[int, int]:
    """Cells (agent x benchmark) in which HACPO is printed below a method, and all such cells."""
    leads = _against(rows, tables, against)
    pairs = [pair for ours, theirs in leads for pair in zip(ours.values, theirs.values, strict=True)]
    return sum(a < b for a, b in pairs), len(pairs)


def _against(rows: Sequence[Row], tables: Sequence[str], method: str) -> list[tuple[Row, Row]]:
    """HACPO's rows of some tables, each with the same agent's under a method."""
    found = {(row.table, row.pair, row.agent, row.method): row for row in rows}
    ours = [row for row in rows if row.table in tables and row.method == "hacpo"]
    return [(row, found[row.table, row.pair, row.agent, method]) for row in ours]


def exponent_means() -> dict[str, dict[str, float]]:
    """Table 4: by pair and method, the mean over the pair's agents."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell in printed_values():
        if cell.table == "table4":
            found.setdefault(cell.pair, {}).setdefault(cell.method, []).append(cell.value)
    return {
        pair: {method: sum(values) / len(values) for method, values in methods.items()}
        for pair, methods in found.items()
    }
