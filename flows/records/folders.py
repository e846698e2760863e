"""Where the experiments are in a runs folder."""

from __future__ import annotations

from pathlib import Path


def experiments_dir(runs_dir: Path) -> Path:
    """Folder that holds one folder per experiment."""
    return runs_dir / "experiments"


def experiment_ids(runs_dir: Path) -> list[str]:
    """Sorted ids of all experiments planned in a runs folder."""
    return sorted(path.name for path in experiments_dir(runs_dir).glob("*-*") if path.is_dir())
