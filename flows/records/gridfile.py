"""Record of each planned grid, stored beside the runs, so that the dashboard need not plan it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from flows.records.files import read_record
from hacpo_core.store.files import write_json


@dataclass(frozen=True, slots=True)
class Place:
    """One agent's cell in a grid's table and the experiment that fills it; several cells may share an experiment."""

    pair: str
    method: str
    label: str
    """distinguishes variants of one method"""
    seed: int
    agent: str
    experiment: str
    unavailable: str = ""
    """why it cannot be run on this machine; empty if it can"""


@dataclass(frozen=True, slots=True)
class GridRecord:
    """A grid as it was last planned."""

    name: str
    title: str
    table: str
    """layout of its report, which also selects the published table to compare with"""
    benchmarks: list[str] = field(default_factory=list)
    """those that comparisons use"""
    places: list[Place] = field(default_factory=list)

    @property
    def experiments(self) -> frozenset[str]:
        """Ids of the experiments that can be run on this machine."""
        return frozenset(place.experiment for place in self.places if not place.unavailable)


_GRID = TypeAdapter(GridRecord)


def _folder(runs_dir: Path) -> Path:
    return runs_dir / "grids"


def save_grid(runs_dir: Path, record: GridRecord) -> None:
    """Store a grid's record; replaces an earlier one of the same name."""
    write_json(_folder(runs_dir) / f"{record.name}.json", asdict(record))


def claim_end(runs_dir: Path, name: str, ends: Mapping[str, Sequence[str]]) -> bool:
    """Whether this call is the first, among all processes, for this end of a grid.

    Args:
        runs_dir: folder of all runs.
        name: of the grid.
        ends: how each experiment ended.
    """
    digest = hashlib.sha256(json.dumps(ends, sort_keys=True).encode()).hexdigest()[:16]
    path = _folder(runs_dir) / f"{name}.ended" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def read_grids(runs_dir: Path) -> list[GridRecord]:
    """All recorded grids, latest first; a corrupt file is logged and skipped."""
    paths = sorted(_folder(runs_dir).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    records = (read_record(path, _GRID) for path in paths)
    return [record for record in records if record is not None]
