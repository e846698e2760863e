"""Transfer of an agent's weights to engines in other processes, by one file per machine or by handles of memory.

file   rank 0 ─write─▶ /dev/shm/hacpo-weights-…/model.safetensors ◀─read─ engines of ranks 0, 1, 2, 3
       (in TMPDIR if /dev/shm is too small)
ipc    rank r ─handles─▶ engine of rank r, which reads the learner's own memory
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.multiprocessing  # teaches ForkingPickler to share tensors
from torch import Tensor

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


@contextmanager
def memory_handles(weights: Iterable[tuple[str, Tensor]]) -> Iterator[bytes]:
    """Handles with which `opened_weights` reads these weights in another process of this machine, during the block.

    Tensors of a GPU are shared as they are (CUDA IPC). Those of the host are copied first, because torch would move the
    learner's own weights to shared memory.
    """
    held = [(name, tensor if tensor.is_cuda else tensor.clone()) for name, tensor in weights]
    _finish_kernels()
    yield bytes(ForkingPickler.dumps(held))
    del held
    if torch.cuda.is_initialized():
        torch.cuda.ipc_collect()


@contextmanager
def opened_weights(handles: bytes) -> Iterator[list[tuple[str, Tensor]]]:
    """The weights of `memory_handles`. After the block, the device has finished whatever reads them in it."""
    yield pickle.loads(handles)
    _finish_kernels()


def _finish_kernels() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _machine() -> tuple[str, int]:
    """Identity of this machine, or of a container with its own shared memory."""
    return socket.gethostname(), SHARED_MEMORY.stat().st_dev if SHARED_MEMORY.is_dir() else 0
