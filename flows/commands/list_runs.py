"""`hacpo list`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.options import AsJson, RunsDir


def list_runs(
    prefix: Annotated[str, typer.Argument(help="beginning of the ids; default: all")] = "",
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List a runs folder: id, state, step and each agent's last accuracies, newest first."""
    from flows.records.states import CONFIG_FILE, experiment_status

    folders = [path.parent for path in (runs_dir / "experiments").glob(f"{prefix}*/{CONFIG_FILE}")]
    rows: list[dict[str, Any]] = []
    for root in sorted(folders, key=lambda root: root.stat().st_mtime, reverse=True):
        status = experiment_status(root)
        progress = status.progress
        accuracies: dict[str, dict[str, float]] = {}
        for evaluation in progress.evaluations if progress is not None else ():
            accuracies.setdefault(evaluation.agent, {})[evaluation.benchmark] = evaluation.value
        rows.append(
            {
                "id": root.name,
                "state": status.state,
                "step": progress.step if progress else 0,
                "num_steps": progress.num_steps if progress else None,
                "accuracy": accuracies,
                "reason": status.reason,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print(f"no experiment in {runs_dir}" + (f" begins with {prefix}" if prefix else ""))
        return
    width = max(len(row["id"]) for row in rows)
    for row in rows:
        steps = f"{row['step']}/{row['num_steps']}" if row["num_steps"] else "-"
        figures = "; ".join(
            f"{agent} " + ", ".join(f"{name} {value:.3f}" for name, value in by_benchmark.items())
            for agent, by_benchmark in row["accuracy"].items()
        )
        print(f"{row['id']:<{width}}  {row['state']:<8} {steps:>9}  {figures or row['reason']}".rstrip())
