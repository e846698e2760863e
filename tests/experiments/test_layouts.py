"""A report's layout is checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from experiments.layouts import LAYOUTS, check_layout
from experiments.planner import load_grid
from flows.compose import available
from hacpo_core.errors import ConfigError


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"table": "table99"}, "report.table: got 'table99', expected one of plain, table1"),
        ({"tabel": "table1"}, "report.tabel: unknown, expected table or benchmarks"),
        ({"benchmarks": "math500"}, "report.benchmarks: got 'math500', expected a list"),
        ({"benchmarks": ["gsm8k"]}, "layout plain shows gsm8k, evaluate.final has math"),
        ({"table": "table4"}, "layout table4 shows math500, evaluate.final has math"),
    ],
)
def test_mistake_is_named(report: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_layout(report, ["math"])


def test_columns_are_not_looked_at_where_benchmarks_are_not_known() -> None:
    check_layout({"table": "table4", "benchmarks": ["gsm8k"]})


@pytest.mark.parametrize("name", available("grid"))
def test_layout_of_every_grid_exists(name: str) -> None:
    report = load_grid(name).report
    check_layout(report)
    assert report["table"] in LAYOUTS
