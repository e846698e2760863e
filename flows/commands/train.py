"""`hacpo train`, `hacpo resume` and `hacpo extend`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import (
    AsJson,
    ExperimentId,
    Hardware,
    MethodName,
    Overrides,
    Pair,
    RunsDir,
    in_runs_dir,
)


def train(
    pair: Pair,
    method: MethodName,
    overrides: Overrides = None,
    hardware: Hardware = "cpu",
    runs_dir: Annotated[Path | None, typer.Option(help="folder of all runs; default: runtime.runs_dir")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a pair with a method; an interrupted run is resumed, a complete one is shown."""
    from flows.planning.compose import compose
    from flows.planning.plans import plan, save_plan
    from flows.records.states import experiment_status

    train_plan = plan(compose(pair, method, hardware=hardware, overrides=in_runs_dir(overrides, runs_dir)))
    if experiment_status(train_plan.root).state != "done":  # what a complete one was trained with stays recorded
        save_plan(train_plan)
    train_planned(train_plan, as_json=as_json)


def resume(experiment: ExperimentId, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Continue an experiment from its last committed phase."""
    from flows.planning.plans import find_plan

    saved_plan = find_plan(runs_dir, experiment)
    if saved_plan.id != experiment:
        print(f"{experiment} is {saved_plan.id}", file=sys.stderr)
    train_planned(saved_plan, as_json=as_json)


def extend(
    experiment: ExperimentId,
    steps: Annotated[int, typer.Option(min=1, help="number of steps of the whole run")],
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Continue a complete run to more steps, as an experiment with an id of its own; the first one stays as it is."""
    from flows.planning.plans import find_plan
    from flows.runs.extend import extend as extend_run

    shorter = find_plan(runs_dir, experiment)
    longer = extend_run(shorter, steps)
    print(f"{longer.id} continues {shorter.id} from step {shorter.config.train.num_steps}", file=sys.stderr)
    train_planned(longer, as_json=as_json)


def train_planned(train_plan: Any, *, as_json: bool) -> None:
    """Train a planned experiment with the runner that it names, and show its result."""
    from flows.records.mlflow_address import has_unsent
    from flows.runs.display import TerminalWatcher, format_table
    from flows.runs.experiment import run_experiment
    from flows.runs.results import read_final
    from hacpo_core.evaluation.stopping import why_ended
    from hacpo_core.phases.runner import DirectRunner

    result = read_final(train_plan)
    is_reused = result is not None
    if result is None:
        with TerminalWatcher(train_plan.id) as watcher:
            if train_plan.config.runtime.runner == "direct":
                run_experiment(train_plan, DirectRunner(), watcher)
            else:
                from flows.service.prefect_server import kept_server, use_server

                runs_dir = Path(train_plan.config.runtime.runs_dir)
                with kept_server(runs_dir) as server:
                    use_server(server, runs_dir)
                    from flows.runs.flow import run_with_prefect

                    run_with_prefect(train_plan, watcher)
        result = read_final(train_plan)
        assert result is not None, "a finished experiment has a result"
    else:
        if not as_json:
            print(f"{train_plan.id} is complete and is reused.")
        if has_unsent(train_plan.root):
            from flows.runs.tracking import sync_experiments

            sync_experiments(Path(train_plan.config.runtime.runs_dir), [train_plan.id])
    if as_json:
        print(json.dumps({"id": result.id, "table": result.table, "reused": is_reused}))
        return
    print(format_table(result.table))
    early_end = why_ended(train_plan.root, train_plan.config)
    if early_end is not None:
        print(f"ended   {early_end}")
    print(f"folder  {result.root}")
