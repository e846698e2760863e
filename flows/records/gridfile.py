"""Record of each planned grid, stored beside the runs, so that the dashboard need not plan it again."""

import fcntl
import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from flows.records.files import read_record
from hacpo_core.files import write_errors, write_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GridCell:
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
    settings: str = ""
    """digest of its experiment's settings but for the seed"""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Pair, method, label and agent: its row of the table."""
        return self.pair, self.method, self.label, self.agent

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Its row and seed: where it is in the table."""
        return *self.row, self.seed


@dataclass(frozen=True, slots=True)
class GridRecord:
    """Everything that was asked of a grid; of a row whose settings changed, only what was asked since."""

    name: str
    title: str
    table: str
    """layout of its report, which also selects the published table to compare with"""
    benchmarks: list[str] = field(default_factory=list)
    """those that comparisons use"""
    cells: list[GridCell] = field(default_factory=list)


_GRID = TypeAdapter(GridRecord)


def _folder(runs_dir: Path) -> Path:
    return runs_dir / "grids"


def save_grid(runs_dir: Path, record: GridRecord) -> frozenset[str]:
    """Store a grid's record with its earlier cells; those whose row has other settings now are counted in a warning.

    Returns:
        ids of the experiments that are new in the record.

    Raises:
        StoreError: it cannot be written.
    """
    path = _folder(runs_dir) / f"{record.name}.json"
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_record(path, _GRID) or replace(record, cells=[])
        keys, settings = {cell.key for cell in record.cells}, {cell.row: cell.settings for cell in record.cells}
        others = [cell for cell in before.cells if cell.key not in keys]
        kept = [cell for cell in others if settings.get(cell.row, cell.settings) == cell.settings]
        if len(kept) < len(others):
            message = "grid %s: %d cells of other seeds have other settings or code and left the grid; train them again"
            _log.warning(message, record.name, len(others) - len(kept))
        write_json(path, asdict(replace(record, cells=[*record.cells, *kept])))
    return frozenset(cell.experiment for cell in record.cells) - {cell.experiment for cell in before.cells}


def recorded_seeds(runs_dir: Path, name: str) -> set[int]:
    """All seeds of a grid's record; empty if there is none."""
    return {cell.seed for record in read_grids(runs_dir) if record.name == name for cell in record.cells}


def read_grids(runs_dir: Path) -> list[GridRecord]:
    """All recorded grids, latest first; a corrupt file is logged and skipped."""
    paths = sorted(_folder(runs_dir).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    records = (read_record(path, _GRID) for path in paths)
    return [record for record in records if record is not None]
