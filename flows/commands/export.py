"""`hacpo export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, ExperimentId, RunsDir
from hacpo_core.errors import ConfigError


def export(
    experiment: ExperimentId,
    agent: Annotated[str, typer.Argument(help="name of the agent")],
    folder: Annotated[Path, typer.Argument(help="folder to write; must not exist yet, or be empty")],
    step: Annotated[int | None, typer.Option(help="training step of the checkpoint; default: the last")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="the best step by checkpoint.keep_best, in place of --step")
    ] = False,
    push: Annotated[str | None, typer.Option(help="also upload it to this hub repository, owner/model")] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Export an agent from a checkpoint as a Hugging Face folder with a model card; the model is not loaded."""
    from flows.exports.export import best_step, export_agent
    from flows.exports.export import push as push_folder
    from flows.planning.plans import find_plan

    plan = find_plan(runs_dir, experiment)
    if best:
        if step is not None:
            raise ConfigError("--best: chooses the step; leave out --step")
        step = best_step(plan, agent)
    model = export_agent(plan, agent, folder, step=step)
    address = None if push is None else push_folder(model.folder, push)
    if as_json:
        values = {"folder": str(model.folder), "id": model.experiment, "agent": agent, "step": model.step}
        print(json.dumps({**values, "weights": model.digest, "pushed": address}))
        return
    print(f"{agent} of {model.experiment} after step {model.step}: {model.folder}")
    if address is not None:
        print(f"pushed: {address}")
