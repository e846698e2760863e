"""`hacpo delete`."""

from __future__ import annotations

from pathlib import Path

from flows.commands.options import ExperimentId, RunsDir


def delete(experiment: ExperimentId, runs_dir: RunsDir = Path("runs")) -> None:
    """Delete a run for good: its responses, checkpoints and results; its run in MLflow stays."""
    from flows.records.deletion import delete_experiment

    num_bytes = delete_experiment(runs_dir, experiment)
    print(f"deleted {experiment}: {num_bytes / 1e6:,.1f} MB are free again")
