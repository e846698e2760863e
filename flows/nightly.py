"""Flows for a Prefect schedule: submit the missing experiments of a grid; write a grid's report."""

from __future__ import annotations

import os
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_link_artifact

from flows.process import configure_process
from flows.service.server import PrefectServer
from flows.service.worker import RUNS_DIR
from hacpo_core.errors import ConfigError


def _runs_dir(parameter: str | None) -> Path:
    folder = parameter or os.environ.get(RUNS_DIR)
    if folder is None:
        raise ConfigError(
            f"runs_dir: got none, expected a folder; set the parameter or {RUNS_DIR} (`hacpo worker` sets it)"
        )
    return Path(folder)


@flow(name="grid", flow_run_name="{grid}", persist_result=False)
def grid_flow(
    grid: str,
    runs_dir: str | None = None,
    hardware: str | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    priority: str = "low",
) -> list[str]:
    """Plan a grid and submit its missing experiments; returns once all of them are in the queue.

    Args:
        grid: name in experiments/grids, or a YAML file.
        runs_dir: folder of all runs; default: the worker's.
        hardware, seeds: replace those of the grid.
        overrides: each "section.field=value", applied to every experiment.
        priority: queue for the experiments: high, normal or low.

    Returns:
        ids of the submitted experiments.
    """
    configure_process()
    from flows.commands.run_grid import record_grid, submit
    from flows.grids.planner import plan_grid
    from flows.service.schedule import Schedule

    folder = _runs_dir(runs_dir)
    grid_plan = plan_grid(grid, runs_dir=folder, hardware=hardware, seeds=seeds, overrides=overrides or [])
    record_grid(grid_plan, folder)
    api = PrefectServer(
        os.environ["PREFECT_API_URL"].removesuffix("/api"), os.environ.get("PREFECT_API_AUTH_STRING", "")
    )
    return submit(grid_plan.experiments("missing"), Schedule(api, folder), priority=priority)


@flow(name="report", flow_run_name="{grid} · report", persist_result=False)
def report_flow(
    grid: str,
    runs_dir: str | None = None,
    hardware: str | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
) -> str:
    """Write a grid's report from its complete experiments; arguments as in `grid_flow`.

    Returns:
        path of the HTML page.
    """
    configure_process()
    from dashboards.report import write_report
    from flows.grids.planner import plan_grid

    folder = _runs_dir(runs_dir)
    grid_plan = plan_grid(grid, runs_dir=folder, hardware=hardware, seeds=seeds, overrides=overrides or [])
    page = write_report(grid_plan, folder / "reports" / grid_plan.name).page
    create_link_artifact(link=page.absolute().as_uri(), key="report", description=f"Report of {grid_plan.name}")
    return str(page)
