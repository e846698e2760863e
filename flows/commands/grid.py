"""`hacpo grid` and `hacpo demo`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import GridHardware, GridName, Overrides, RunsDir, Seeds, numbers, stay_offline
from hacpo_core.errors import ConfigError


def demo(seeds: Seeds = None, overrides: Overrides = None, runs_dir: RunsDir = Path("runs")) -> None:
    """Train two tiny language models on arithmetic, alone and together; takes a few minutes on a laptop."""
    from flows.commands.run_grid import run_grid
    from flows.grids.planner import plan_grid

    run_grid(partial(plan_grid, "demo", runs_dir=runs_dir, seeds=numbers(seeds), overrides=overrides or []), runs_dir)


def grid(
    name: GridName,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print experiments and estimated cost; run nothing")
    ] = False,
    run: Annotated[
        str, typer.Option(help="missing, failed or all; complete experiments are never run again")
    ] = "missing",
    seeds: Seeds = None,
    hardware: GridHardware = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="experiments at a time; default: one per GPU; without GPUs cores / engine.num_threads, 1 with auto",
        ),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="only submit the experiments; do not wait")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Train a grid of pairs, methods and seeds; skip what is complete; print the table and write the report."""
    if dry_run:
        stay_offline()
    from flows.commands.run_grid import run_grid
    from flows.grids.planner import plan_grid
    from flows.grids.show import SELECTED, show_grid

    if run not in SELECTED:
        raise ConfigError(f"--run: got {run!r}, expected one of {', '.join(SELECTED)}")
    make_plan = partial(
        plan_grid, name, runs_dir=runs_dir, hardware=hardware, seeds=numbers(seeds), overrides=overrides or []
    )
    if dry_run:
        show_grid(make_plan(), run)
        return
    run_grid(make_plan, runs_dir, run, num_workers=workers, waits=not submit)
