"""Where experiments are in a runs folder, how they are deleted, and how the small JSON files in it are read."""

import logging
import shutil
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from hacpo_core.errors import ConfigError
from hacpo_core.store.lock import ExperimentLock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def experiments_dir(runs_dir: Path) -> Path:
    """Folder that holds one folder per experiment."""
    return runs_dir / "experiments"


def experiment_ids(runs_dir: Path) -> list[str]:
    """Sorted ids of all experiments planned in a runs folder."""
    return sorted(path.name for path in experiments_dir(runs_dir).glob("*-*") if path.is_dir())


def nearest_ids(runs_dir: Path, experiment: str) -> str:
    """The three ids most like this one, for messages; "none" in an empty folder."""
    return ", ".join(get_close_matches(experiment, experiment_ids(runs_dir), n=3, cutoff=0.0)) or "none"


def read_record(path: Path, kind: TypeAdapter[_T]) -> _T | None:
    """The record in a JSON file; None if there is no file, or if it is corrupt, which is logged."""
    if not path.is_file():
        return None
    try:
        return kind.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValidationError) as error:
        _log.warning("%s is corrupt and counts as missing: %s", path, error)
        return None


def delete_folder(runs_dir: Path, folder: Path) -> int:
    """Delete a folder of a runs folder and return its bytes.

    It is first moved into `deleted`, so that an interrupted deletion leaves no half of it.
    """
    num_bytes = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    aside = runs_dir / "deleted" / uuid4().hex
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    shutil.rmtree(aside)
    return num_bytes


def delete_experiment(runs_dir: Path, experiment: str) -> int:
    """Delete an experiment's folder. Its run in MLflow stays, and planning it again starts it from the first step.

    Args:
        runs_dir: folder of all runs.
        experiment: complete id.

    Returns:
        freed bytes.

    Raises:
        ConfigError: there is no such experiment.
        LockedError: it is being trained.
    """
    if experiment not in experiment_ids(runs_dir):
        nearest = nearest_ids(runs_dir, experiment)
        raise ConfigError(f"got {experiment!r}, expected the complete id of an experiment; the nearest are {nearest}")
    root = experiments_dir(runs_dir) / experiment
    with ExperimentLock(root):
        return delete_folder(runs_dir, root)
