"""`hacpo grid` and `hacpo demo`: train the selected experiments of a grid, print the results, write the report."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pandas as pd

from flows.grids.planner import GridPlan, with_recorded_seeds
from flows.grids.show import SELECTED, Selection, count_experiments, experiments_text, print_states, uses_gpu
from flows.grids.watch import watch
from flows.planning.plans import Plan, save_plan
from flows.records.files import experiments_dir
from flows.records.gridfile import save_grid
from flows.records.mlflow_address import STATE_FILE, mark_unsent
from flows.records.progress import read_progress
from flows.records.states import experiment_status
from flows.runs.display import format_table
from flows.runs.results import grid_table
from flows.runs.tracking import plan_tracking_uri, sync
from flows.service.gpu_locks import check_gpu_driver, visible_devices
from flows.service.prefect_server import end_when_idle, ensure_server, find_server, log_in_hint
from flows.service.processes import slots_here
from flows.service.schedule import RefusedError, Schedule
from flows.service.worker import find_worker, worker_here
from hacpo_core.config.addresses import without_password
from hacpo_core.config.counts import num_processes, occupied_gpus, total_updates
from hacpo_core.config.threads import num_threads, usable_cores
from hacpo_core.errors import ConfigError, EngineError, HacpoError, ServerError

_log = logging.getLogger(__name__)


def run_grid(
    make_plan: Callable[..., GridPlan],
    runs_dir: Path,
    selection: Selection = "missing",
    *,
    num_workers: int | None = None,
    waits: bool = True,
) -> None:
    """Submit the selected experiments of a grid, wait for them, print the results and write the report.

    A running worker of this folder trains them, or else a worker started for this call.

    Args:
        make_plan: plans the grid, before and after the training; takes other `seeds`.
        runs_dir: folder of all runs.
        selection: which experiments; complete ones are never run again.
        num_workers: experiments at a time, of the worker that is started.
        waits: if not, return once all are queued.

    Raises:
        ConfigError: `num_workers` is given, but a worker with another number runs.
        EngineError: an experiment of the grid is not complete; the next call continues from there.
    """
    begun_at = time.monotonic()
    _check_num_workers(num_workers, runs_dir)
    grid = make_plan()
    plans_to_run = grid.experiments(*SELECTED[selection])
    awaited_plans = [*plans_to_run, *grid.experiments("running")]
    for plan in grid.experiments("done"):
        print(f"{plan.id} is complete and is reused.")
    print_states(grid)
    if not awaited_plans and not grid.experiments("done"):
        raise EngineError(
            f"{grid.name}: no experiment is complete and --run {selection} selects none; --run all takes those that "
            "failed and those not run yet, --dry-run shows why others cannot be run"
        )
    record_grid(grid, runs_dir)
    if awaited_plans:
        print(grid.config.about.strip())
        for plan in awaited_plans:
            check_gpu_driver(plan.config)
        number = num_workers or default_workers(awaited_plans)
        if not waits:
            submit(plans_to_run, _schedule(runs_dir))
            print(f"{experiments_text(len(plans_to_run))} in the queue; start `hacpo worker` to train")
            return
        print(f"{experiments_text(len(awaited_plans))}, {number} at a time; the first steps take a moment")
        _train(awaited_plans, runs_dir, num_slots=number)
        grid = make_plan()
    _show_results(grid, with_recorded_seeds(grid, make_plan, runs_dir), runs_dir, begun_at=begun_at)
    _raise_unless_complete(grid)


def _check_num_workers(num_workers: int | None, runs_dir: Path) -> None:
    slots = slots_here(runs_dir)
    if num_workers is not None and slots not in (None, num_workers):
        raise ConfigError(
            f"--workers: got {num_workers}, but the worker of {runs_dir} takes {slots} at a time; leave it out, "
            "or stop that worker"
        )


def _show_results(grid: GridPlan, whole: GridPlan, runs_dir: Path, *, begun_at: float) -> None:
    """Print a grid's results and the addresses of report, page, Prefect and MLflow; report it with all its seeds."""
    from dashboards.report import read_results, write_report  # imports vl-convert, not needed to show or submit a grid

    table = grid_table(grid.record, runs_dir)
    brief = "No experiment is complete." if table.empty else format_table(_brief(table, grid.config.report.benchmarks))
    print(f"\n{brief}", flush=True)
    report = write_report(read_results(whole), runs_dir / "reports" / whole.name)
    sync(runs_dir, whole.plans, [whole.record], report.sentences, whole.plans)
    for plan in grid.plans.values():
        progress = read_progress(plan.root)
        for finding in progress.open_findings if progress is not None else ():
            print(f"health   {plan.id}, {finding.agent}: {finding.text}")
    print(f"\nreport   {report.page}")
    print(f"page     `make dashboard`, or `hacpo dashboard --runs-dir {runs_dir}`")
    server = find_server(runs_dir)
    if server is not None:
        print(f"Prefect  {server.url}  ({log_in_hint(runs_dir)})")
    print(f"MLflow   {_mlflow_address(grid)}")
    print(f"took     {time.monotonic() - begun_at:.0f} s")
    if report.sentences:
        print("\n" + "\n".join(report.sentences))


def _brief(table: pd.DataFrame, benchmarks: Sequence[str] | None) -> pd.DataFrame:
    """What one looks at first: who, accuracy before and after, and tokens; the report has the rest.

    Args:
        table: of the grid.
        benchmarks: those of the report; none: all.
    """
    table = table.rename(columns={"tokens_sampled": "tokens"})
    table["method"] = (table["method"] + " " + table["label"]).str.strip()
    key_columns = [name for name in ("pair", "seed") if table[name].nunique() > 1]
    ends = ("_before", "_after", "_unscored")
    endings = tuple(f"{name}{end}" for name in benchmarks for end in ends) if benchmarks else ends
    scores = [name for name in map(str, table) if name.endswith(endings)]
    return table[[*key_columns, "method", "agent", *scores, "tokens"]]


def _raise_unless_complete(grid: GridPlan) -> None:
    """Raise an EngineError that counts the experiments by state, unless all are complete."""
    counts = count_experiments(grid)
    if counts["done"] == sum(counts.values()):
        return
    words = {"running": "running elsewhere", "unavailable": "cannot run on this machine"}
    others = ", ".join(
        f"{number} {words.get(state, state)}" for state, number in counts.items() if number and state != "done"
    )
    # A model or class that was repaired makes a new experiment, which has not failed.
    remedy = "; --run all trains them" if counts["failed"] or counts["missing"] else ""
    raise EngineError(f"{counts['done']} of {experiments_text(sum(counts.values()))} done, {others}{remedy}")


def record_grid(grid: GridPlan, runs_dir: Path) -> None:
    """Store the grid for the dashboard, and the plans of all runnable experiments for the workers."""
    for name in save_grid(runs_dir, grid.record):  # MLflow's tags name the grids of a complete experiment
        if (experiments_dir(runs_dir) / name / STATE_FILE).is_file():
            mark_unsent(experiments_dir(runs_dir) / name)
    for plan in grid.experiments("missing", "failed"):
        save_plan(plan)


def submit(plans: Sequence[Plan], schedule: Schedule) -> list[str]:
    """Submit experiments, the longest first; those already queued or running are left alone.

    Returns:
        ids of the newly submitted experiments.
    """
    ids = []
    for plan in _longest_first(plans):
        try:
            ids.append(schedule.start(plan.id).experiment)
        except RefusedError as refusal:
            _log.info("%s", refusal)
    return ids


def _longest_first(plans: Sequence[Plan]) -> list[Plan]:
    return sorted(plans, key=lambda p: len(p.config.pair.agents) * total_updates(p.config), reverse=True)


def _schedule(runs_dir: Path) -> Schedule:
    """The schedule of a runs folder; starts its server if necessary."""
    return Schedule(ensure_server(runs_dir), runs_dir)


def _train(plans: Sequence[Plan], runs_dir: Path, *, num_slots: int) -> None:
    """Submit experiments and wait for them; the display says which fail, and why.

    Raises:
        HacpoError: a model cannot be made, or the worker of this call ended.
    """
    try:
        with worker_here(runs_dir, num_slots=num_slots) as check:  # starts worker and server in the background
            schedule = _schedule(runs_dir)
            end_when_idle(runs_dir, 60 * plans[0].config.runtime.server_idle_minutes)
            submit(plans, schedule)  # removes an earlier failure, which would end the wait
            watch(_longest_first(plans), schedule, partial(_schedule, runs_dir), check)
    except (KeyboardInterrupt, EngineError, ServerError):
        server = find_server(runs_dir)  # its address may have changed
        if find_worker(runs_dir) is None and server is not None:
            schedule = Schedule(server, runs_dir)
            for plan in plans:  # no worker is left to train them; the same call resubmits them
                if experiment_status(plan.root).state != "running":  # elsewhere
                    with suppress(HacpoError):
                        schedule.cancel(plan.id, has_worker=False)
        raise


def _mlflow_address(grid: GridPlan) -> str:
    uri = plan_tracking_uri(next(iter(grid.plans.values())))
    return "nothing was logged: tracking.enabled is false" if uri is None else without_password(uri)


def default_workers(plans: Sequence[Plan]) -> int:
    """Number of concurrent experiments: GPUs divided by those of the smallest experiment, or cores by the largest's.

    In an external Ray cluster it is 1, because a second experiment would be refused instead of waiting.
    """
    configs = [plan.config for plan in plans]
    if any(config.placement.kind == "ray" and config.placement.ray.address is not None for config in configs):
        return 1
    if uses_gpu(plans):
        return max(1, len(visible_devices()) // max(1, min(map(occupied_gpus, configs))))
    return max(1, usable_cores() // max(num_processes(config) * num_threads(config) for config in configs))
