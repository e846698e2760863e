"""The step store: committed outputs of each phase of each step, so that no rollout needs to be repeated.

Layout of one experiment's folder:

    lock                        held by the one process that writes
    config.yaml                 resolved configuration
    steps/000012/<file>         written to a temporary name, renamed
    steps/000012/manifest.json  phases, their files and SHA-256 digests; replaced as a whole, last

A commit survives the death of its process immediately, and a power cut when it has been synced: before a checkpoint at
the latest. After an earlier power cut, a file differs from its digest or the manifest is corrupt; then its phases run
again.
"""

import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
from pyarrow import parquet

from hacpo_core.errors import StoreError
from hacpo_core.files import as_json, read_json, sha256_of, sync, write_atomically, write_errors

_log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
REPLAYS_FILE = "replays.json"
"""file in an experiment's folder that lists every repeated update and how close its result was"""


def phase_name(kind: str, agent: str, round_index: int = 0) -> str:
    """Name of an agent's phase: rollout.qwen in the first round of sampling, rollout-2.qwen in the second."""
    return f"{kind}.{agent}" if round_index == 0 else f"{kind}-{round_index + 1}.{agent}"


def _as_parquet(table: pyarrow.Table | Mapping[str, Any]) -> memoryview:
    if not isinstance(table, pyarrow.Table):
        table = pyarrow.table(dict(table))
    with pyarrow.BufferOutputStream() as stream:
        # Dictionaries and statistics would double the time, and tables are never filtered by token columns.
        parquet.write_table(table, stream, use_dictionary=False, write_statistics=False)
        return memoryview(stream.getvalue())


class StepStore:
    """Committed outputs of an experiment's phases.

    A phase has a name such as "rollout.qwen"; its output is a set of named files: tables (`.parquet`) or JSON values.
    Reading verifies the digest in the manifest: a corrupt or altered file counts as missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mutex = threading.Lock()
        self._manifests: dict[int, dict[str, Any]] = {}  # as written by this object, the only writer
        self._unsynced: dict[Path, None] = {}

    def folder(self, step: int) -> Path:
        """Folder of one step (1-based; 0: before training)."""
        return self.root / "steps" / f"{step:06d}"

    def _manifest(self, step: int) -> dict[str, Any]:
        if step in self._manifests:
            return self._manifests[step]
        path = self.folder(step) / MANIFEST
        if not path.exists():
            return {"step": step, "phases": {}}
        try:
            manifest: dict[str, Any] = read_json(path)
        except StoreError as error:
            _log.warning("the manifest of step %d is corrupt, so its phases are run again: %s", step, error)
            return {"step": step, "phases": {}}
        return manifest

    def committed(self, step: int) -> tuple[str, ...]:
        """Names of the step's committed phases, in the order of their commit."""
        return tuple(self._manifest(step)["phases"])

    def num_rounds(self, step: int, kind: str, agent: str) -> int:
        """Number of committed rounds of an agent's rollout or verify phase, counted from the first without gaps."""
        phases = self.committed(step)
        return next(n for n in itertools.count() if phase_name(kind, agent, n) not in phases)

    def committed_at_ms(self, step: int, phase: str) -> int:
        """Time of the phase's commit, in milliseconds since the epoch."""
        return int(self._manifest(step)["phases"][phase]["committed_at"] * 1000)

    def is_intact(self, step: int, phase: str) -> bool:
        """Whether the phase is committed and all its files are unchanged."""
        entry = self._manifest(step)["phases"].get(phase)
        if entry is None:
            return False
        paths = ((self.folder(step) / name, digest) for name, digest in entry["files"].items())
        return all(path.is_file() and sha256_of(path) == digest for path, digest in paths)

    def commit(self, step: int, phase: str, outputs: Mapping[str, Any], *, outdates: Collection[str] = ()) -> None:
        """Write a phase's outputs, then add them to the manifest, which commits the phase.

        Args:
            step: number of the step.
            phase: name of the phase; an earlier commit of the same phase is replaced.
            outputs: file name to an Arrow table or its columns by name (.parquet), or to a JSON-able value (.json).
            outdates: phases of the step that depend on an earlier commit of this phase; their commits are removed.

        Raises:
            StoreError: the disk is full or not writable.
        """
        folder = self.folder(step)
        digests = {}
        for name, value in outputs.items():
            content = _as_parquet(value) if name.endswith(".parquet") else as_json(value)
            write_atomically(folder / name, content, syncs=False)
            digests[name] = hashlib.sha256(content).hexdigest()
        with self._mutex:
            phases = self._manifest(step)["phases"]
            other_entries = {name: entry for name, entry in phases.items() if name not in (phase, *outdates)}
            entry = {"files": digests, "committed_at": time.time()}
            manifest = {"step": step, "phases": {**other_entries, phase: entry}}
            write_atomically(folder / MANIFEST, as_json(manifest), syncs=False)
            self._manifests[step] = manifest
            self._unsynced |= dict.fromkeys([*(folder / name for name in digests), folder / MANIFEST])
            self._unsynced |= dict.fromkeys([folder, folder.parent, self.root])

    def sync(self) -> None:
        """Sync all commits to disk, so that they survive a power cut.

        Raises:
            StoreError: the disk is full or broken.
        """
        with self._mutex:
            paths, self._unsynced = self._unsynced, {}
        try:
            for path in paths:
                with write_errors(path):
                    sync(path)
        except StoreError:
            with self._mutex:
                self._unsynced = paths | self._unsynced
            raise

    def read_table(self, step: int, phase: str, name: str, *, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """A committed table, or some of its columns.

        Raises:
            StoreError: the phase is not committed, or the file is corrupt.
        """
        frame: pd.DataFrame = self.read_arrow(step, phase, name, columns=columns).to_pandas()
        return frame

    def read_arrow(self, step: int, phase: str, name: str, *, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """As `read_table`, as an Arrow table."""
        return parquet.read_table(self._checked(step, phase, name), columns=None if columns is None else list(columns))

    def read_value(self, step: int, phase: str, name: str) -> Any:
        """A committed JSON value; errors as for `read_table`."""
        return read_json(self._checked(step, phase, name))

    def metrics(self, step: int) -> dict[str, Any]:
        """Metrics of a step, as returned by `hacpo_core.phases.metrics.step_metrics`."""
        value: dict[str, Any] = self.read_value(step, "metrics", "metrics.json")
        return value

    def _checked(self, step: int, phase: str, name: str) -> Path:
        entry = self._manifest(step)["phases"].get(phase)
        path = self.folder(step) / name
        if entry is None or name not in entry["files"]:
            raise StoreError(f"step {step} has no committed {phase}/{name} in {self.root}; run the phase again")
        if not path.is_file() or sha256_of(path) != entry["files"][name]:
            raise StoreError(f"{path} is missing or was altered after it was committed; restore it or start again")
        return path

    def num_complete(self) -> int:
        """Number of steps, counted from the first without gaps, whose metrics, the last phase, are intact."""
        return next(step for step in itertools.count() if not self.is_intact(step + 1, "metrics"))

    def last_step(self) -> int:
        """Highest step with a folder; 0 when there is none."""
        folder = self.root / "steps"
        return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()), default=0)
