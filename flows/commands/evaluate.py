"""`hacpo evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, ExperimentId, RunsDir
from hacpo_core.errors import HacpoError


def evaluate(
    experiment: ExperimentId,
    benchmarks: Annotated[str | None, typer.Option(help="comma-separated; default: the experiment's own")] = None,
    step: Annotated[
        int | None, typer.Option(help="training step to evaluate after; 0: before training; default: the last")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Evaluate an experiment's agents on benchmarks; one that fails stops no other, an interrupted call is resumed."""
    from flows.planning.plans import find_plan
    from flows.runs import evaluate as evaluation
    from flows.runs.display import TerminalWatcher, format_table
    from hacpo_core.phases.runner import DirectRunner

    trained_plan = find_plan(runs_dir, experiment)
    names = benchmarks.split(",") if benchmarks else []
    usable_names, errors = evaluation.usable_benchmarks(trained_plan, names)
    if names and not usable_names:
        evaluation.raise_failed(errors)
    evaluation_plan = evaluation.with_benchmarks(trained_plan, usable_names)
    step = evaluation.checked_step(evaluation_plan, step)
    try:
        with TerminalWatcher(trained_plan.id) as watcher:
            evaluation.run_evaluation(evaluation_plan, step, DirectRunner(), watcher)
    except HacpoError as error:
        errors[""] = error  # it names its benchmarks
    frame = evaluation.evaluations_of(evaluation_plan, step)
    if as_json:
        print(frame.to_json(orient="records", lines=True).strip())
    elif len(frame):
        print(format_table(frame))
    evaluation.raise_failed(errors)
