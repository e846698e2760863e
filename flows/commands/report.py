"""`hacpo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import Overrides, RunsDir, Seeds, numbers, stay_offline


def report(
    name: Annotated[str, typer.Argument(help="name in experiments/grids, or a YAML file")],
    overrides: Overrides = None,
    seeds: Seeds = None,
    hardware: Annotated[str | None, typer.Option(help="in place of the grid's own")] = None,
    runs_dir: RunsDir = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="folder; default: <runs-dir>/reports/<grid>")] = None,
) -> None:
    """Write a grid's report, measured beside printed, as an HTML page and as Markdown; nothing is run or downloaded."""
    stay_offline()
    from experiments.planner import plan_grid
    from experiments.report import write_report

    planned = plan_grid(name, runs_dir=runs_dir, hardware=hardware, seeds=numbers(seeds), overrides=overrides or [])
    print(write_report(planned, out or runs_dir / "reports" / planned.name))
