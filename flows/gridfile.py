"""What `hacpo grid` was asked for, kept beside the runs, so that a page can show a grid without planning it again."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hacpo_core.errors import StoreError
from hacpo_core.files import read_json, write_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """One agent's place in a grid's table, and the experiment that fills it; several places may share one."""

    pair: str
    method: str
    label: str
    """tells variants of one method apart"""
    seed: int
    agent: str
    experiment: str
    unavailable: str = ""
    """why it cannot be run here; empty: it can"""


@dataclass(frozen=True, slots=True)
class GridRecord:
    """A grid as it was last asked for."""

    name: str
    title: str
    table: str
    """layout of its report, and with it the printed table of the paper that it is compared to"""
    benchmarks: list[str] = field(default_factory=list)
    """that count in comparisons"""
    places: list[Place] = field(default_factory=list)


def _folder(runs_dir: Path) -> Path:
    return runs_dir / "grids"


def save_grid(runs_dir: Path, record: GridRecord) -> None:
    """Keep a grid, in place of an earlier one of its name."""
    write_json(_folder(runs_dir) / f"{record.name}.json", asdict(record))


def read_grids(runs_dir: Path) -> list[GridRecord]:
    """All grids that were asked for, the latest first; a torn file is left out and logged."""
    found = []
    for path in sorted(_folder(runs_dir).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            value = read_json(path)
            found.append(GridRecord(**{**value, "places": [Place(**place) for place in value["places"]]}))
        except (StoreError, KeyError, TypeError) as error:
            _log.warning("%s is torn, so its grid is not shown until the next `hacpo grid`: %s", path, error)
    return found
