"""A flow for a Prefect schedule: submit the missing experiments of a grid."""

import os
from collections.abc import Sequence
from pathlib import Path

from prefect import flow

from flows.grids.planner import plan_grid
from flows.process import configure_process
from flows.service.prefect_server import ensure_server
from flows.service.worker import RUNS_DIR


@flow(name="grid", flow_run_name="{grid}", persist_result=False)
def grid_flow(
    grid: str, runs_dir: str | None = None, hardware: str | None = None, overrides: Sequence[str] = ()
) -> list[str]:
    """Plan a grid and submit its missing experiments; returns once all of them are in the queue.

    Arguments are those of `hacpo grid`; the folder of all runs is the worker's if none is given.

    Returns:
        ids of the submitted experiments.
    """
    from flows.commands.run_grid import record_grid, submit
    from flows.service.schedule import Schedule

    configure_process()
    folder = Path(runs_dir or os.environ.get(RUNS_DIR, "runs"))
    grid_plan = plan_grid(grid, runs_dir=folder, hardware=hardware, seeds=None, overrides=overrides)
    record_grid(grid_plan, folder)
    return submit(grid_plan.experiments("missing"), Schedule(ensure_server(folder), folder))
