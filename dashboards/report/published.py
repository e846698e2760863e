"""The paper's tables as records, with this project's names of methods and benchmarks."""

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

AVERAGE = "avg"
"""name of the column with the mean of the others"""
BEFORE = "base"
"""name of the row of an agent before training"""


def published_rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of a file of `experiments/published`."""
    yield from csv.DictReader((files("experiments") / "published" / name).read_text(encoding="utf-8").splitlines())


def printed_ratios() -> Mapping[str, Mapping[str, float]]:
    """Table 6, qwen3-1.7b-base beside qwen3-4b-base under HACPO: by source, "own" (s_homo) or "cross" (s_hete).

    Mean, maximum, minimum and range over training steps of the step's mean ratio.
    """
    rows = list(published_rows("table6_ratios.csv"))
    return {row.pop("source"): {name: float(value) for name, value in row.items()} for row in rows}


PaperValues = Mapping[tuple[str, str, str, str], float]
"""the paper's values by (pair, agent, method, benchmark)"""


@cache
def paper_values_in(table: str) -> PaperValues:
    """Accuracies in [0, 1] of a printed table; empty if there is no table of that name.

    Tables 1, 2, 3 and 7 have seven benchmarks and their average. Table 4 does not name its benchmark; we assume
    MATH-500, because every value is a multiple of 1/500.
    """
    rows = [row for row in published_rows("results.csv") if row["table"] == table]
    return {(row["pair"], row["agent"], row["method"], row["benchmark"]): float(row["value"]) for row in rows}
