"""A run's checkpoints on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A checkpoint of all agents after a step."""

    step: int
    agents: tuple[str, ...]
    num_bytes: int


def read_checkpoints(root: Path) -> list[SavedStep]:
    """The checkpoints of the experiment in this folder, newest first; half-written ones are left out."""
    folders = (root / "checkpoints").glob("[0-9]*")
    steps = [folder for folder in folders if folder.name.isdigit() and folder.is_dir()]
    return [
        SavedStep(
            int(folder.name),
            tuple(sorted(each.name for each in folder.iterdir() if each.is_dir())),
            sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        )
        for folder in sorted(steps, reverse=True)
    ]
