"""The paper's tables as records, with this project's names of methods and benchmarks."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

AVERAGE = "avg"
"""name of the column with the mean of the others"""
BEFORE = "base"
"""name of the row of an agent before training"""


@dataclass(frozen=True, slots=True)
class PrintedValue:
    """One cell of a printed table: an accuracy in [0, 1]. `benchmark` is `AVERAGE` in the last column."""

    table: str
    pair: str
    agent: str
    method: str
    benchmark: str
    value: float


def published_rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of a file of `experiments/published`."""
    yield from csv.DictReader((files("experiments") / "published" / name).read_text(encoding="utf-8").splitlines())


@cache
def printed_values() -> tuple[PrintedValue, ...]:
    """Tables 1, 2, 3, 7 (seven benchmarks and their average) and 4, in the printed order.

    Table 4 does not name its benchmark; we assume MATH-500, because every value is a multiple of 1/500.
    """
    return tuple(PrintedValue(**{**row, "value": float(row["value"])}) for row in published_rows("results.csv"))  # type: ignore[arg-type]


def printed_ratios() -> Mapping[str, Mapping[str, float]]:
    """Table 6, qwen3-1.7b-base beside qwen3-4b-base under HACPO: by source, "own" (s_homo) or "cross" (s_hete).

    Mean, maximum, minimum and range over training steps of the step's mean ratio.
    """
    rows = list(published_rows("table6_ratios.csv"))
    return {row.pop("source"): {name: float(value) for name, value in row.items()} for row in rows}


PaperValues = Mapping[tuple[str, str, str, str], float]
"""the paper's values by (pair, agent, method, benchmark)"""


def paper_values_in(table: str) -> PaperValues:
    """Cells of a printed table; empty if there is no table of that name."""
    return {(v.pair, v.agent, v.method, v.benchmark): v.value for v in printed_values() if v.table == table}
