"""`hacpo train` and `hacpo resume`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import ExperimentId, Hardware, MethodName, Overrides, Pair, RunsDir, in_runs_dir


def train(
    pair: Pair,
    method: MethodName,
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
    runs_dir: Annotated[Path | None, typer.Option(help="folder of all runs; default: runtime.runs_dir")] = None,
) -> None:
    """Train a pair with a method; an interrupted run is resumed, a complete one is shown."""
    from flows.planning.compose import compose
    from flows.planning.plans import plan, save_plan
    from flows.records.states import experiment_status
    from flows.service.gpu_locks import check_gpu_driver

    config = compose(pair, method, hardware=hardware, overrides=in_runs_dir(overrides, runs_dir))
    check_gpu_driver(config)
    train_plan = plan(config)
    if experiment_status(train_plan.root).state != "done":  # what a complete one was trained with stays recorded
        save_plan(train_plan)
    train_planned(train_plan)


def resume(
    experiment: ExperimentId,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="more than a complete run has, which was trained with checkpoint.keep_optimizer=true"),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Continue an experiment from its last committed phase; with --steps, a complete one to more steps."""
    from flows.planning.plans import find_plan
    from flows.runs.extend import extend

    saved_plan = find_plan(runs_dir, experiment)
    resumed_plan = saved_plan if steps is None else extend(saved_plan, steps)
    if resumed_plan.id != experiment:
        print(
            f"{experiment} is {resumed_plan.id}" if steps is None else f"{resumed_plan.id} continues it",
            file=sys.stderr,
        )
    train_planned(resumed_plan)


def train_planned(train_plan: Any) -> None:
    """Train a planned experiment with the runner that it names, and show its result."""
    from flows.runs.display import TerminalWatcher, format_table
    from flows.runs.experiment import run_experiment
    from flows.runs.results import read_final
    from hacpo_core.evaluation.stopping import why_ended
    from hacpo_core.phases.runner import DirectRunner
    from hacpo_core.store.lock import ExperimentLock

    result = read_final(train_plan.root)
    if result is None:
        with ExperimentLock(train_plan.root), TerminalWatcher(train_plan.id) as watcher:
            if train_plan.config.runtime.runner == "direct":
                run_experiment(train_plan, DirectRunner(), watcher, has_lock=True)
            else:
                from flows.service.prefect_server import end_when_idle, kept_server, use_server

                runs_dir = Path(train_plan.config.runtime.runs_dir)
                with kept_server(runs_dir) as server:
                    end_when_idle(runs_dir, 60 * train_plan.config.runtime.server_idle_minutes)
                    use_server(server, runs_dir)
                    from flows.runs.flow import run_with_prefect

                    run_with_prefect(train_plan, watcher)
        result = read_final(train_plan.root)
        assert result is not None, "a finished experiment has a result"
    else:
        print(f"{train_plan.id} is complete and is reused.")
    print(format_table(result.table))
    early_end = why_ended(train_plan.root, train_plan.config)
    if early_end is not None:
        print(f"ended   {early_end}")
    print(f"folder  {result.root}")
