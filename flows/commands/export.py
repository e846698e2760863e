"""`hacpo export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import ExperimentId, RunsDir
from hacpo_core.errors import ConfigError


def export(
    experiment: ExperimentId,
    agent: Annotated[str, typer.Argument(help="name of the agent")],
    folder: Annotated[Path, typer.Argument(help="folder to write; must not exist yet, or be empty")],
    step: Annotated[int | None, typer.Option(help="training step of the checkpoint; default: the last")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="the best step by checkpoint.keep_best, in place of --step")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Export an agent from a checkpoint as a Hugging Face folder with a model card; the model is not loaded."""
    from flows.exports.export import best_step, export_agent
    from flows.planning.plans import find_plan

    plan = find_plan(runs_dir, experiment)
    if best:
        if step is not None:
            raise ConfigError("--best: chooses the step; leave out --step")
        step = best_step(plan)
    model = export_agent(plan, agent, folder, step=step)
    print(f"{agent} of {model.experiment} after step {model.step}: {model.folder}")
