"""Where experiments lie in a runs folder; needs nothing else of them."""

from __future__ import annotations

from pathlib import Path


def experiments_dir(runs_dir: Path) -> Path:
    """Where the folders of a runs folder's experiments lie."""
    return runs_dir / "experiments"


def experiment_ids(runs_dir: Path) -> list[str]:
    """Ids of all experiments that were planned in a runs folder, sorted."""
    return sorted(path.name for path in experiments_dir(runs_dir).glob("*-*") if path.is_dir())
