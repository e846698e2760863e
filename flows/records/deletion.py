"""Deletes experiments."""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.records.files import experiment_ids, experiments_dir
from hacpo_core.errors import ConfigError
from hacpo_core.store.lock import ExperimentLock


def delete_experiment(runs_dir: Path, experiment: str) -> int:
    """Delete an experiment's folder. Its run in MLflow stays, and planning it again starts it from the first step.

    The folder is first moved aside, so that an interrupted deletion leaves no half of an experiment.

    Args:
        runs_dir: folder of all runs.
        experiment: complete id.

    Returns:
        freed bytes.

    Raises:
        ConfigError: there is no such experiment.
        LockedError: it is being trained.
    """
    root = experiments_dir(runs_dir) / experiment
    if experiment not in experiment_ids(runs_dir):
        raise ConfigError(f"got {experiment!r}, expected the complete id of an experiment; `hacpo list` shows all")
    trash = runs_dir / "deleted"
    with ExperimentLock(root):
        num_bytes = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
        trash.mkdir(exist_ok=True)
        shutil.rmtree(trash / experiment, ignore_errors=True)
        root.rename(trash / experiment)
    shutil.rmtree(trash / experiment)
    return num_bytes
