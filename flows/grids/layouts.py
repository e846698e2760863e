"""Layouts of a report, as named in a grid's `report.table`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hacpo_core.errors import ConfigError

_REPORT_LAYOUTS = ("plain", "table1", "table2", "table3", "table4", "table6", "table7", "figure3", "figure4")


def check_layout(layout: str, columns: Sequence[str] | None, benchmarks: Collection[str] | None = None) -> None:
    """Check the layout of a report.

    Args:
        layout: `report.table` of a grid.
        columns: its `report.benchmarks`; None: all.
        benchmarks: those that the grid's experiments evaluate after training; None: do not check the columns.

    Raises:
        ConfigError: an unknown layout, or a column that no experiment evaluates.
    """
    if layout not in _REPORT_LAYOUTS:
        raise ConfigError(f"report.table: got {layout!r}, expected one of {', '.join(_REPORT_LAYOUTS)}; fix the grid")
    if benchmarks is None:
        return
    for name in ["math500"] if layout == "table4" else columns or []:
        if name not in benchmarks:
            names = ", ".join(sorted(benchmarks)) or "nothing"
            raise ConfigError(f"report: layout {layout} shows {name}, evaluate.final has {names}; fix the grid")
