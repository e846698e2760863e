"""The experiments and grids of a runs folder. Names from requests are looked up here before they become paths."""

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.records.files import experiment_ids, experiments_dir
from flows.records.gridfile import GridCell, GridRecord, read_grids
from flows.records.states import ExperimentStatus, experiment_status
from hacpo_core.errors import HacpoError
from hacpo_core.store.lock import is_locked

_ID = re.compile(r"(?P<pair>.+)-(?P<method>[^-]+)-s(?P<seed>\d+)-[0-9a-f]{8}")
_Signature = tuple[object, ...]
_SETTLED_NS = 10**9


class UnknownError(HacpoError, LookupError):
    """A request names an experiment, a grid or a step that does not exist."""


@dataclass(frozen=True, slots=True)
class _Entry:
    changed_ns: int | None
    """when a file of the folder was last written, None without a folder"""
    is_locked: bool
    is_settled: bool
    """whether the folder was read long enough after its last change that another change has another time"""
    status: ExperimentStatus


class Runs:
    """Experiments and grids of a runs folder; an experiment's files are parsed again only if one has changed."""

    def __init__(self, runs_dir: Path, *, read: Callable[[Path], ExperimentStatus] = experiment_status) -> None:
        self.runs_dir = runs_dir
        self._folder = experiments_dir(runs_dir)
        self._read = read
        self._entries: dict[str, _Entry] = {}
        self._grids: tuple[_Signature, list[GridRecord]] | None = None
        self._owners: tuple[list[GridRecord], dict[str, tuple[str, list[GridCell]]]] | None = None
        self._mutex = threading.Lock()

    def names(self) -> list[str]:
        """Ids of all experiments, sorted."""
        return experiment_ids(self.runs_dir)

    def root(self, experiment: str) -> Path:
        """Folder of an experiment.

        Raises:
            UnknownError: there is no such experiment.
        """
        if experiment not in self.names():
            raise UnknownError(f"there is no experiment {experiment!r} in {self._folder}")
        return self._folder / experiment

    def root_of(self, experiment: str) -> Path:
        """Folder of an experiment whose name comes from a grid or the listing."""
        return self._folder / experiment

    def status(self, experiment: str) -> ExperimentStatus:
        """State of an experiment; its folder need not exist. The name must come from a grid or the listing."""
        entry, root = self._entries.get(experiment), self._folder / experiment
        changed_ns = _changed_ns(root)
        if (
            entry is not None
            and entry.is_settled
            and entry.changed_ns == changed_ns
            and (entry.status.state == "done" or entry.is_locked == is_locked(root))
        ):
            return entry.status
        is_settled = changed_ns is None or time.time_ns() - changed_ns > _SETTLED_NS
        entry = _Entry(changed_ns, is_locked(root), is_settled, self._read(root))
        with self._mutex:
            self._entries[experiment] = entry
        return entry.status

    def grids(self) -> list[GridRecord]:
        """Recorded grids, latest first."""
        files = sorted((self.runs_dir / "grids").glob("*.json"))
        signature = tuple((path, _changed_ns(path)) for path in files)
        with self._mutex:
            if self._grids is None or self._grids[0] != signature:
                self._grids = signature, read_grids(self.runs_dir)
            return self._grids[1]

    def grid(self, name: str) -> GridRecord:
        """A grid by name.

        Raises:
            UnknownError: there is no such grid.
        """
        for record in self.grids():
            if record.name == name:
                return record
        raise UnknownError(f"there is no grid {name!r} in this runs folder; choose one on the first page")

    def _owner(self, experiment: str) -> tuple[str, list[GridCell]]:
        """Name of the newest grid that has an experiment, and its cells there; ("", []) if none has it."""
        grids = self.grids()
        if self._owners is None or self._owners[0] is not grids:
            owners: dict[str, tuple[str, list[GridCell]]] = {}
            for grid in grids:
                for cell in grid.cells:
                    owner, owner_cells = owners.setdefault(cell.experiment, (grid.name, []))
                    owner_cells += [cell] if owner == grid.name else []
            self._owners = grids, owners
        return self._owners[1].get(experiment, ("", []))

    def unavailable(self, experiment: str) -> str:
        """Why its newest grid could not plan an experiment on this machine, "" if it could."""
        return next((cell.unavailable for cell in self._owner(experiment)[1]), "")

    def cells(self, experiment: str) -> list[GridCell]:
        """Pair, method, seed and agents of an experiment, as the grid names them that asked for it.

        A training of one agent belongs to its grid's pair. Without a grid, an experiment has a cell per agent, and a
        single one without an agent if it has not started.
        """
        if owner_cells := self._owner(experiment)[1]:
            return owner_cells
        progress = self.status(experiment).progress
        if progress is not None:
            agents = list(progress.spent) or [progress.pair]
            pair, method, seed = progress.pair, progress.method, progress.seed
        else:
            match = _ID.fullmatch(experiment)
            pair, method, seed = (match["pair"], match["method"], int(match["seed"])) if match else (experiment, "", 0)
            agents = [""]
        return [GridCell(pair, method, "", seed, agent, experiment) for agent in agents]


def _changed_ns(path: Path) -> int | None:
    """When a file was changed; or a folder, with every file that is renamed into it, as all files of its state are."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
