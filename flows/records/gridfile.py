"""What `hacpo grid` was asked for, kept beside the runs, so that a page can show a grid without planning it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from flows.records.recordfile import read_record
from hacpo_core.store.files import write_json


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


_GRID = TypeAdapter(GridRecord)


def _folder(runs_dir: Path) -> Path:
    return runs_dir / "grids"


def save_grid(runs_dir: Path, record: GridRecord) -> None:
    """Keep a grid, in place of an earlier one of its name."""
    write_json(_folder(runs_dir) / f"{record.name}.json", asdict(record))


def read_grids(runs_dir: Path) -> list[GridRecord]:
    """All grids that were asked for, the latest first; a torn file is left out and logged."""
    paths = sorted(_folder(runs_dir).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = (read_record(path, _GRID) for path in paths)
    return [record for record in found if record is not None]
