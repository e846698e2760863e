"""Transfer of an agent's weights to an engine in other processes, through a file that both map into their memory.

    learner's weights ─fill─▶ half 0 | half 1 ─load─▶ engine, and then the other way round

The file is in /dev/shm, or in TMPDIR if /dev/shm is too small.
"""

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

import torch
from torch import Tensor

from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.errors import EngineError

SHARED_MEMORY = "/dev/shm"
HALF_BYTES = 2**28
"""size of half a bucket, unless the largest tensor needs more or the model less"""
_ALIGNMENT = 64  # bytes


class Place(NamedTuple):
    """Where a tensor is in the bucket, in types that vLLM can send: name, torch's name of its dtype, first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def view(self, memory: Tensor) -> Tensor:
        """The tensor, as a view of the bucket's bytes."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        end = self.start + math.prod(self.shape) * dtype.itemsize
        return memory[self.start : end].view(dtype).view(self.shape)


class WeightBucket:
    """Memory of two halves, shared with an engine's processes: one is filled while the engine loads the other.

    `path` is the file's name until `close`. It is in no folder, so no file is left when processes are killed.
    """

    def __init__(self, weights: Iterable[TensorPart]) -> None:
        """Allocate memory for tensors of these sizes, so that no transfer can run out of it.

        Raises:
            EngineError: no folder has room.
        """
        sizes = [_aligned(part.num_bytes) for part in weights]
        self._half = max(*sizes, _aligned(min(HALF_BYTES, sum(sizes) // 2)))
        self._file = _allocated(2 * self._half)
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        self._memory = mapped(self.path)

    def fill(self, weights: Iterable[TensorPart]) -> Iterator[list[Place]]:
        """Copy weights into the halves in turn, and yield what a half holds; load it before it is filled again.

        Args:
            weights: read once each, in order; if they are sharded, by all ranks together.
        """
        half, end = 0, 0
        places: list[Place] = []
        for part in weights:
            if end + part.num_bytes > self._half:
                yield places
                half, end, places = self._half - half, 0, []
            places.append(Place(part.name, str(part.dtype).removeprefix("torch."), part.shape, half + end))
            tensor = part.read()
            assert (tensor.dtype, tuple(tensor.shape)) == (part.dtype, part.shape), part.name
            places[-1].view(self._memory).copy_(tensor)
            del tensor  # free it before the next one is read
            end += _aligned(part.num_bytes)
        yield places

    def close(self) -> None:
        """Release the memory, which the engine's processes keep until they end."""
        self._file.close()
        del self._memory


def mapped(path: str) -> Tensor:
    """The bytes of a file, in memory that is shared with all processes that map the file."""
    return torch.from_file(path, shared=True, size=os.path.getsize(path), dtype=torch.uint8)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _allocated(num_bytes: int) -> IO[bytes]:
    """A file without a name in the first folder with room."""
    failures = []
    for folder in (SHARED_MEMORY, tempfile.gettempdir()):
        try:
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  the bucket closes it
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return file
        except OSError as error:
            failures.append(f"{folder}: {error.strerror}")
    raise EngineError(
        f"vLLM gets its weights through {num_bytes / 2**30:.2g} GiB of shared memory, for which there is no room "
        f"({'; '.join(failures)}); free some space there, or set TMPDIR to a folder with that much space"
    )
