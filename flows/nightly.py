"""Flows for a Prefect schedule: submit the missing experiments of a grid; write a grid's report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_link_artifact

from flows.grids.planner import GridPlan, plan_grid
from flows.process import configure_process
from flows.service.prefect_server import ensure_server
from flows.service.worker import RUNS_DIR


def _plan(grid: str, runs_dir: str | None, hardware: str | None, overrides: Sequence[str]) -> tuple[GridPlan, Path]:
    configure_process()
    folder = Path(runs_dir or os.environ.get(RUNS_DIR, "runs"))
    return plan_grid(grid, runs_dir=folder, hardware=hardware, seeds=None, overrides=overrides), folder


@flow(name="grid", flow_run_name="{grid}", persist_result=False)
def grid_flow(
    grid: str, runs_dir: str | None = None, hardware: str | None = None, overrides: Sequence[str] = ()
) -> list[str]:
    """Plan a grid and submit its missing experiments with low priority; returns once all of them are in the queue.

    Args:
        grid: name in experiments/grids, or a YAML file.
        runs_dir: folder of all runs; default: the worker's.
        hardware: replaces that of the grid.
        overrides: each "section.field=value", applied to every experiment.

    Returns:
        ids of the submitted experiments.
    """
    from flows.commands.run_grid import record_grid, submit
    from flows.service.schedule import Schedule

    grid_plan, folder = _plan(grid, runs_dir, hardware, overrides)
    record_grid(grid_plan, folder)
    return submit(grid_plan.experiments("missing"), Schedule(ensure_server(folder), folder), priority="low")


@flow(name="report", flow_run_name="{grid} · report", persist_result=False)
def report_flow(
    grid: str, runs_dir: str | None = None, hardware: str | None = None, overrides: Sequence[str] = ()
) -> str:
    """Write a grid's report from its complete experiments; arguments as in `grid_flow`. Returns the page's path."""
    from dashboards.report import write_report
    from flows.commands.run_grid import record_of
    from flows.grids.mlflow_rows import sync_grid

    grid_plan, folder = _plan(grid, runs_dir, hardware, overrides)
    page = write_report(grid_plan, folder / "reports" / grid_plan.name).page
    sync_grid(record_of(grid_plan), folder)
    create_link_artifact(link=page.absolute().as_uri(), key="report", description=f"Report of {grid_plan.name}")
    return str(page)
