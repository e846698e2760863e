"""The query of the table of runs, its result, and the result as CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

from dashboards.charts.charts import inert
from dashboards.report.statistics import Summary

DEFAULT_COLUMNS = ("run", "pair", "method", "seed", "state", "health", "step", "reward", "accuracy", "tokens", "tags")


@dataclass(frozen=True, slots=True)
class Query:
    """What a table shows; all of it stands in the page's address."""

    conditions: str = ""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    order: str = ""
    """a column; with a leading "-", descending"""
    group: tuple[str, ...] = ()
    has_archived: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or with `members` a group of runs; `values` as in the table's columns.

    `key` is the run's id; a group's is a JSON list of the exact texts that its runs have in common.
    """

    key: str
    values: tuple[Any, ...]
    members: tuple[str, ...] = ()
    is_archived: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a query; `problem` says what is wrong with the query, "" if nothing is."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    num_runs: int
    problem: str = ""


def cell_text(value: Any, digits: int = 4) -> str:
    """A value as text: numbers with `digits` significant ones, a group's as mean ± half width."""
    if value is None:
        return ""
    if isinstance(value, Summary):
        is_large = abs(value.mean) >= 1000
        width = "" if math.isnan(value.half_width) else f" ± {value.half_width:{',.0f' if is_large else '.2g'}}"
        return f"{value.mean:{',.0f' if is_large else f'.{digits}g'}}{width}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def as_csv(table: Table) -> str:
    """The table as CSV with all digits; a group's number becomes mean, half width and count."""
    wide = [any(isinstance(row.values[n], Summary) for row in table.rows) for n in range(len(table.columns))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [
        [column, f"{column} half width", f"{column} runs"] if is_wide else [column]
        for column, is_wide in zip(table.columns, wide, strict=True)
    ]
    writer.writerow([name for group in names for name in group])
    for row in table.rows:
        cells: list[Any] = []
        for value, is_wide in zip(row.values, wide, strict=True):
            if is_wide:
                summary = value if isinstance(value, Summary) else None
                cells += [summary.mean, summary.half_width, summary.num_seeds] if summary is not None else ["", "", ""]
            else:
                cells.append(value if isinstance(value, int | float) else inert(cell_text(value)))
        writer.writerow(cells)
    return text.getvalue()
