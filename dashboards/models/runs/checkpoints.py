"""A run's checkpoints on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.planning.compose import load_config
from flows.records.states import CONFIG_FILE
from hacpo_core.errors import HacpoError
from hacpo_core.evaluation.best import best_texts

KEEP_BEST = "checkpoint.keep_best.metric"


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A checkpoint of all agents after a step; `why_kept` is empty unless it is one of the best."""

    step: int
    agents: tuple[str, ...]
    num_bytes: int
    why_kept: str = ""


def read_checkpoints(root: Path, *, keeps_best: bool) -> list[SavedStep]:
    """The checkpoints of the experiment in this folder, newest first; half-written ones are left out.

    Args:
        root: folder of the experiment.
        keeps_best: whether KEEP_BEST is set. If not, its configuration is not read, which takes longer than all else.
    """
    best = _best(root) if keeps_best else {}
    folders = (root / "checkpoints").glob("[0-9]*")
    steps = [folder for folder in folders if folder.name.isdigit() and folder.is_dir()]
    return [
        SavedStep(
            int(folder.name),
            tuple(sorted(agent_folder.name for agent_folder in folder.iterdir() if agent_folder.is_dir())),
            sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            best.get(int(folder.name), ""),
        )
        for folder in sorted(steps, reverse=True)
    ]


def _best(root: Path) -> Mapping[int, str]:
    try:
        return best_texts(root, load_config(root / CONFIG_FILE))
    except HacpoError:  # a configuration of another version; the page says so elsewhere
        return {}
