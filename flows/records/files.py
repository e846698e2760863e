"""Where experiments are in a runs folder, and how the small JSON files in it are read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def experiments_dir(runs_dir: Path) -> Path:
    """Folder that holds one folder per experiment."""
    return runs_dir / "experiments"


def experiment_ids(runs_dir: Path) -> list[str]:
    """Sorted ids of all experiments planned in a runs folder."""
    return sorted(path.name for path in experiments_dir(runs_dir).glob("*-*") if path.is_dir())


def read_record(path: Path, kind: TypeAdapter[_T]) -> _T | None:
    """The record in a JSON file; None if there is no file, or if it is corrupt, which is logged."""
    if not path.is_file():
        return None
    try:
        return kind.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValidationError) as error:
        _log.warning("%s is corrupt and counts as missing: %s", path, error)
        return None
