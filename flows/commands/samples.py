"""`hacpo samples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, ExperimentId, RunsDir


def samples(
    experiment: ExperimentId,
    step: Annotated[int | None, typer.Option(help="training step; default: 1, with --benchmark the last one")] = None,
    benchmark: Annotated[str | None, typer.Option(help="show responses to this benchmark, not from training")] = None,
    num: Annotated[int | None, typer.Option(min=1, help="number of problems; default: 2, with --json all")] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show the agents' responses of a training step with their advantages and ratios, or those on a benchmark.

    Per learner: A is the advantage, s the importance ratio; `stopped` means that clipping set the gradient to 0.
    """
    from flows.planning.plans import find_plan
    from flows.runs.samples import benchmark_samples, print_benchmark_samples, print_samples, step_samples

    sample_plan = find_plan(runs_dir, experiment)
    if benchmark is None:
        frame, show_rows = step_samples(sample_plan, 1 if step is None else step), print_samples
    else:
        frame, show_rows = benchmark_samples(sample_plan, benchmark, step), print_benchmark_samples
    if as_json:
        first_rows = frame if num is None else frame[frame.problem_id.isin(frame.problem_id.unique()[:num])]
        print(first_rows.to_json(orient="records", lines=True), end="")
    else:
        show_rows(frame, num or 2)
