"""Transfer of an agent's weights to engines in other processes, by one file per machine.

rank 0 ─write─▶ /dev/shm/hacpo-weights-…/model.safetensors ◀─read─ engines of ranks 0, 1, 2, 3
(in TMPDIR if /dev/shm is too small)
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hacpo_core.engines.models.tensor_files import TensorPart, write_tensors
from hacpo_core.engines.ranks import all_ranks, this_rank
from hacpo_core.errors import EngineError

SHARED_MEMORY = Path("/dev/shm")
ROOM = 1.1
"""free space that a folder must have, as a multiple of the weights' size"""


class WeightExchange:
    """Folders in which a rank writes the weights for all ranks of its machine."""

    def __init__(self) -> None:
        """Create the folders, one of them in shared memory if there is any."""
        parents = [str(SHARED_MEMORY)] if os.access(SHARED_MEMORY, os.W_OK) else []
        parents.append(tempfile.gettempdir())
        self.folders = [Path(tempfile.mkdtemp(prefix="hacpo-weights-", dir=parent)) for parent in parents]

    @contextmanager
    def copy(self, weights: Iterable[TensorPart]) -> Iterator[Path]:
        """A temporary folder with the weights as model.safetensors; all ranks of a group must call this.

        Args:
            weights: unsharded, the same on all ranks; only one is in memory at a time.

        Raises:
            EngineError: a rank could not write the weights; raised on all ranks.
        """
        parts = list(weights)
        ranks = all_ranks(_machine())
        file, error = None, ""
        try:
            if ranks.index(_machine()) == this_rank():
                file, error = self._write(parts)
            files = all_ranks((_machine(), str(file) if file is not None else None, error))
            failures = [failure for _, _, failure in files if failure]
            if failures:
                raise EngineError(
                    f"the weights could not be written: {failures[0]}; free some space there, or set TMPDIR to a "
                    "folder with room for all of them"
                )
            yield next(Path(path).parent for machine, path, _ in files if path is not None and machine == _machine())
            all_ranks(None)  # the file stays until every engine has read it
        finally:
            if file is not None:
                file.unlink(missing_ok=True)

    def _write(self, parts: Sequence[TensorPart]) -> tuple[Path, str]:
        """Write the file into the first folder with enough space; return its path and an error message, or ""."""
        num_bytes = sum(part.num_bytes for part in parts)
        roomy_folders = [folder for folder in self.folders if shutil.disk_usage(folder).free >= ROOM * num_bytes]
        error = ""
        for folder in roomy_folders or self.folders[-1:]:
            file = folder / "model.safetensors"
            try:
                write_tensors(file, parts, hashes=False)
                return file, ""
            except OSError as caught:  # another agent may have used the space meanwhile
                error = f"{file}: {caught.strerror or caught}"
                file.unlink(missing_ok=True)
        return file, error

    def close(self) -> None:
        """Remove the folders."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def _machine() -> tuple[str, int]:
    """Identity of this machine, or of a container with its own shared memory."""
    return socket.gethostname(), SHARED_MEMORY.stat().st_dev if SHARED_MEMORY.is_dir() else 0
