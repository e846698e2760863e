"""A report's layout is checked before anything is trained."""

from __future__ import annotations

import pytest

from flows.grids.layouts import check_layout
from hacpo_core.errors import ConfigError


@pytest.mark.parametrize(
    ("layout", "columns", "message"),
    [
        ("table99", None, "report.table: got 'table99', expected one of plain, table1"),
        ("plain", ["gsm8k"], "layout plain shows gsm8k, evaluate.final has math"),
        ("table4", None, "layout table4 shows math500, evaluate.final has math"),
    ],
)
def test_mistake_is_named(layout: str, columns: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_layout(layout, columns, ["math"])


def test_columns_are_not_looked_at_where_benchmarks_are_not_known() -> None:
    check_layout("table4", ["gsm8k"])
