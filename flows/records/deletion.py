"""Deletes experiments, and says beforehand what would be lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flows.records.gridfile import GridRecord
from flows.records.states import experiment_status
from hacpo_core.store.lock import ExperimentLock


@dataclass(frozen=True, slots=True)
class DeletionPreview:
    """What the deletion of an experiment loses; `grids` are the titles of those that show it."""

    experiment: str
    state: str
    step: int
    num_checkpoints: int
    num_bytes: int
    gpu_s: float
    seconds: float
    grids: tuple[str, ...]


def deletion_preview(root: Path, grids: Iterable[GridRecord]) -> DeletionPreview:
    """What the deletion of the experiment in this folder would lose."""
    status = experiment_status(root)
    costs = status.progress.spent.values() if status.progress is not None else ()
    checkpoints = root / "checkpoints"
    return DeletionPreview(
        experiment=root.name,
        state=status.state,
        step=status.progress.step if status.progress is not None else 0,
        num_checkpoints=sum(folder.is_dir() for folder in checkpoints.iterdir()) if checkpoints.is_dir() else 0,
        num_bytes=sum(_size(Path(folder) / name) for folder, _, names in os.walk(root) for name in names),
        gpu_s=sum(cost.gpu_s for cost in costs),
        seconds=sum(cost.seconds for cost in costs),
        grids=tuple(grid.title for grid in grids if any(cell.experiment == root.name for cell in grid.cells)),
    )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # the run may replace files meanwhile
        return 0


def delete_experiment(root: Path) -> None:
    """Delete an experiment's folder. Its run in MLflow stays, and planning it again starts it from the first step.

    The folder is first moved aside, so that an interrupted deletion leaves no half of an experiment.

    Raises:
        LockedError: it is being trained.
    """
    trash = root.parent.parent / "deleted"
    with ExperimentLock(root):
        trash.mkdir(exist_ok=True)
        shutil.rmtree(trash / root.name, ignore_errors=True)
        root.rename(trash / root.name)
    shutil.rmtree(trash / root.name)
