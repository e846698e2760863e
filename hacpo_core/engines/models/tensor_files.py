"""safetensors files, written and read one tensor at a time to save memory.

Layout of a file: length of the header in 8 bytes · header as JSON · the tensors' bytes, in the header's order.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.float16: "F16"}


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor that is created when it is read. If it is sharded, all ranks must read it together."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        """Size of the tensor's data."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(path: Path, parts: Iterable[TensorPart]) -> str:
    """Write a safetensors file and hash it meanwhile in a second thread.

    Args:
        path: of the file, which is not synced to disk.
        parts: the tensors, read one at a time in this order.

    Returns:
        SHA-256 (hex) of the file.

    Raises:
        OSError: the disk is full or not writable.
    """
    parts = list(parts)
    digest = hashlib.sha256()
    with path.open("wb") as file, ThreadPoolExecutor(1) as hasher:

        def write(content: Any) -> None:
            hashed = hasher.submit(digest.update, content)
            file.write(content)
            hashed.result()

        write(_header(parts))
        for part in parts:
            tensor = part.read()
            assert (tensor.dtype, tuple(tensor.shape)) == (part.dtype, part.shape), part.name
            write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
            del tensor  # free it before the next one is read
    return digest.hexdigest()


def _header(parts: Iterable[TensorPart]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for part in parts:
        start, end = end, end + part.num_bytes
        entries[part.name] = {"dtype": _DTYPES[part.dtype], "shape": list(part.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file by name, each read on access."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            SafetensorError: it is not a safetensors file.
        """
        self._file: Any = safe_open(path, framework="pt")  # type: ignore[no-untyped-call,unused-ignore]

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())
