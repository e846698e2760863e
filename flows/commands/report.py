"""`hacpo report`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import GridHardware, GridName, Overrides, RunsDir, Seeds, numbers, stay_offline
from hacpo_core.errors import ConfigError

if TYPE_CHECKING:  # imports vl-convert
    from dashboards.report import Report

ARCHIVE = ".json.gz"


def report(
    name: GridName,
    overrides: Overrides = None,
    seeds: Seeds = None,
    hardware: GridHardware = None,
    runs_dir: RunsDir = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="folder; default: <runs-dir>/reports/<grid>")] = None,
) -> None:
    """Write a grid's report, results beside the paper's, as HTML and Markdown and into MLflow; trains nothing.

    Without --seeds it has all seeds that were trained; with --seeds it is one beside it, and MLflow is left as it is.

    Beside a report lies results.json.gz; given that file instead of a grid, it is written again without the runs.
    """
    stay_offline()
    if name.endswith(ARCHIVE):
        from dashboards.report import load_results, write_report

        results = load_results(Path(name))
        _print(write_report(results, out or runs_dir / "reports" / results.record.name))
        return
    if not runs_dir.is_dir():
        raise ConfigError(f"--runs-dir: got {runs_dir}, which is no folder; name the folder that `hacpo grid` wrote")
    from dashboards.report import read_results, save_results, write_report
    from flows.grids.planner import plan_grid, with_recorded_seeds
    from flows.runs.tracking import sync

    make_plan = partial(plan_grid, name, runs_dir=runs_dir, hardware=hardware, overrides=overrides or [])
    grid_plan = make_plan(seeds=numbers(seeds))
    folder_name = f"{grid_plan.name}-seeds-{'-'.join(map(str, grid_plan.config.seeds))}"
    if seeds is None:
        grid_plan, folder_name = with_recorded_seeds(grid_plan, make_plan, runs_dir), grid_plan.name
    results, folder = read_results(grid_plan), out or runs_dir / "reports" / folder_name
    report = write_report(results, folder)
    save_results(results, folder / f"results{ARCHIVE}")
    if seeds is None:  # MLflow holds one verdict, that of all seeds
        sync(runs_dir, (), [grid_plan.record], report.sentences, grid_plan.plans)
    _print(report)


def _print(report: Report) -> None:
    print("\n".join((str(report.page), *report.sentences)))
