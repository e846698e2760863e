"""The layouts that a report can have, named in a grid's `report` section."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hacpo_core.errors import ConfigError

LAYOUTS = ("plain", "table1", "table2", "table3", "table4", "table6", "table7", "figure3", "figure4")
FIELDS = ("table", "benchmarks")


def check_layout(report: Mapping[str, object], benchmarks: Collection[str] | None = None) -> None:
    """Whether a report can be laid out like this.

    Args:
        report: a grid's section of that name: `table`, one of LAYOUTS, and `benchmarks`, the columns.
        benchmarks: that the grid's experiments evaluate after training; None does not look at the columns.

    Raises:
        ConfigError: an unknown field or layout, or a column that no experiment evaluates.
    """
    for name in report:
        if name not in FIELDS:
            raise ConfigError(f"report.{name}: unknown, expected {' or '.join(FIELDS)}; mend the grid")
    layout = report.get("table", "plain")
    if layout not in LAYOUTS:
        raise ConfigError(f"report.table: got {layout!r}, expected one of {', '.join(LAYOUTS)}; mend the grid")
    columns = report.get("benchmarks") or []
    if not isinstance(columns, list | tuple):
        raise ConfigError(f"report.benchmarks: got {columns!r}, expected a list of names; mend the grid")
    if benchmarks is None:
        return
    for name in ["math500"] if layout == "table4" else columns:
        if name not in benchmarks:
            found = ", ".join(benchmarks) or "none"
            raise ConfigError(f"report: layout {layout} shows {name}, evaluate.final has {found}; mend the grid")
