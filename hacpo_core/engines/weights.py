"""What identifies a set of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def weights_digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 (hex) of tensors' names, shapes and bits."""
    return digest_in_order(sorted(named, key=lambda item: item[0]))


def digest_in_order(named: Iterable[tuple[str, Tensor]]) -> str:
    """The same of tensors that come in the order of their names, one at a time."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
