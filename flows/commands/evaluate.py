"""`hacpo evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import AsJson, ExperimentId, RunsDir, declared, watcher_of
from hacpo_core.errors import ConfigError, HacpoError


def evaluate(
    experiment: ExperimentId,
    tasks: Annotated[list[str] | None, typer.Argument(help="with --with: tasks of the harness")] = None,
    benchmarks: Annotated[str | None, typer.Option(help="comma-separated; default: the experiment's own")] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="benchmarks of a file in experiments/suites, or of a YAML file; one that fails stops no other",
            autocompletion=declared("suite"),
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="training step to evaluate after; 0: before training; default: the last")
    ] = None,
    harness: Annotated[
        str | None, typer.Option("--with", help="lm-eval: evaluate on tasks of lm-eval-harness, not on benchmarks")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="with --with: evaluate only this agent")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="with --with: problems per task; default: all")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="with --with: few-shot examples per prompt")] = None,
    include_path: Annotated[str | None, typer.Option(help="with --with: folder with YAML files of more tasks")] = None,
    batch_size: Annotated[
        str | None, typer.Option(help="with --with: sequences per batch, or auto; default: 1")
    ] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="with --with: use the chat template, as in training")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Evaluate an experiment's agents on benchmarks; an interrupted evaluation is resumed.

    With `--with lm-eval`, evaluate the agents of a checkpoint on tasks of lm-eval-harness.
    """
    harness_options = {
        "limit": limit,
        "num_fewshot": num_fewshot,
        "include_path": include_path,
        "batch_size": batch_size,
        "apply_chat_template": apply_chat_template or None,
    }
    options = {name: value for name, value in harness_options.items() if value is not None}
    if harness is not None:
        if harness != "lm-eval":
            raise ConfigError(f"--with: got {harness!r}, expected lm-eval")
        for option, value in (("--benchmarks", benchmarks), ("--suite", suite)):
            if value is not None:
                raise ConfigError(f"{option}: has no effect with --with lm-eval; name lm-eval's tasks as arguments")
        _evaluate_with_harness(experiment, tasks or [], options, agent, step, runs_dir, as_json)
        return
    idle_options = [
        *(tasks or []),
        *(f"--{name.replace('_', '-')}" for name in options),
        *(["--agent"] if agent else []),
    ]
    if idle_options:
        raise ConfigError(
            f"{', '.join(idle_options)}: no effect without --with lm-eval; name benchmarks with --benchmarks"
        )
    if benchmarks is not None and suite is not None:
        raise ConfigError("--suite: names benchmarks, as --benchmarks does; give one of the two")
    _evaluate(experiment, benchmarks.split(",") if benchmarks else [], suite, step, runs_dir, as_json)


def _evaluate(
    experiment: str, names: list[str], suite_name: str | None, step: int | None, runs_dir: Path, as_json: bool
) -> None:
    """Evaluate on benchmarks and print the table; after a suite, also what failed."""
    from flows.planning.plans import find_plan
    from flows.runs.display import format_table
    from flows.service.server import ensure_server, kept_server, use_server

    trained_plan = find_plan(runs_dir, experiment)
    is_direct = trained_plan.config.runtime.runner == "direct"
    if not is_direct:
        use_server(ensure_server(runs_dir), runs_dir)
    from flows.runs.evaluate import (
        check_questions,
        checked_step,
        evaluate_with_prefect,
        evaluations_of,
        raise_failed,
        run_evaluation,
        suite,
        usable_benchmarks,
        with_benchmarks,
    )
    from hacpo_core.phases.runner import DirectRunner

    errors: dict[str, HacpoError] = {}
    if suite_name is not None:
        names, errors = usable_benchmarks(trained_plan, suite(suite_name))
        if not names:
            raise_failed(errors)
    evaluation_plan = with_benchmarks(trained_plan, names)
    step = checked_step(evaluation_plan, step)  # raises before Prefect records a run
    check_questions(evaluation_plan)
    try:
        with watcher_of(trained_plan.id, as_json=as_json) as watcher:
            if is_direct:
                run_evaluation(evaluation_plan, step, DirectRunner(), watcher, keeps_going=suite_name is not None)
            else:
                with kept_server(runs_dir):
                    evaluate_with_prefect(trained_plan, names, step, watcher, keeps_going=suite_name is not None)
    except HacpoError as error:
        if suite_name is None:
            raise
        errors[""] = error  # it names its benchmarks
    frame = evaluations_of(evaluation_plan, step)
    if as_json:
        print(frame.to_json(orient="records", lines=True).strip())
    elif len(frame):
        print(format_table(frame))
    raise_failed(errors)


def _evaluate_with_harness(
    experiment: str,
    tasks: list[str],
    options: dict[str, Any],
    agent: str | None,
    step: int | None,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Run lm-eval and print its results."""
    from flows.exports.harness import HarnessOptions, run_harness
    from flows.planning.plans import find_plan
    from flows.runs.display import format_table

    rows = run_harness(find_plan(runs_dir, experiment), HarnessOptions(tasks, **options), agent=agent, step=step)
    print("\n".join(map(json.dumps, rows)) if as_json else format_table(rows))
