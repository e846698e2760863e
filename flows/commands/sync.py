"""`hacpo sync`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import EXIT_RUN, RunsDir


def sync(
    experiments: Annotated[list[str] | None, typer.Argument(help="ids; default: all, and the grids")] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write to MLflow what it lacks of a runs folder; what was deleted on MLflow's page is restored.

    Training does this itself. It is needed if MLflow was away, or after a deletion.
    """
    from flows.grids.mlflow_rows import sync_grid
    from flows.records.gridfile import read_grids
    from flows.records.mlflow_address import unsent_experiments
    from flows.runs.tracking import sync_experiments

    for name in sync_experiments(runs_dir, experiments or []):
        print(f"{name}: sent to MLflow")
    for record in [] if experiments else read_grids(runs_dir):
        sync_grid(record, runs_dir)
    if unsent_experiments(runs_dir):
        raise typer.Exit(EXIT_RUN)
