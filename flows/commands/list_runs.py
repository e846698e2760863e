"""`hacpo list`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

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
    rows = []
    for root in sorted(folders, key=lambda root: root.stat().st_mtime, reverse=True):
        status = experiment_status(root)
        progress = status.progress
        last = {(found.agent, found.benchmark): found.value for found in progress.evaluations} if progress else {}
        accuracies: dict[str, dict[str, float]] = {}
        for (agent, benchmark), value in last.items():
            accuracies.setdefault(agent, {})[benchmark] = value
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
    width = max(len(str(row["id"])) for row in rows)
    for row in rows:
        of_agents = row["accuracy"].items() if isinstance(row["accuracy"], dict) else ()
        accuracy = "; ".join(
            f"{agent} " + ", ".join(f"{name} {value:.3f}" for name, value in values.items())
            for agent, values in of_agents
        )
        steps = f"{row['step']}/{row['num_steps']}" if row["num_steps"] else "-"
        print(f"{row['id']:<{width}}  {row['state']:<8} {steps:>9}  {accuracy or row['reason']}".rstrip())
