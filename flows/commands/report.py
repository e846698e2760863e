"""`hacpo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import GridHardware, GridName, Overrides, RunsDir, Seeds, numbers, stay_offline
from hacpo_core.errors import ConfigError


def report(
    name: GridName,
    overrides: Overrides = None,
    seeds: Seeds = None,
    hardware: GridHardware = None,
    runs_dir: RunsDir = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="folder; default: <runs-dir>/reports/<grid>")] = None,
) -> None:
    """Write a grid's report, results beside the paper's, as HTML and Markdown and into MLflow; trains nothing."""
    stay_offline()
    if not runs_dir.is_dir():
        raise ConfigError(f"--runs-dir: got {runs_dir}, which is no folder; name the folder that `hacpo grid` wrote")
    from dashboards.report import write_report
    from flows.commands.run_grid import record_of
    from flows.grids.mlflow_rows import sync_grid
    from flows.grids.planner import plan_grid

    grid_plan = plan_grid(name, runs_dir=runs_dir, hardware=hardware, seeds=numbers(seeds), overrides=overrides or [])
    report = write_report(grid_plan, out or runs_dir / "reports" / grid_plan.name)
    sync_grid(record_of(grid_plan), runs_dir, report.sentences)
    print("\n".join((str(report.page), *report.sentences)))
