"""`hacpo extend`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, ExperimentId, RunsDir
from flows.commands.train import train_planned


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
