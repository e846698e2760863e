"""What identifies a set of weights, computed on the device where they lie.

    bits of every weight    ─ integer sums ─▶ digest       equal only where all weights are equal
    values of every weight  ─ signed sums  ─▶ projections  differ by about as much as the weights do

Both are sums over the weights, of terms that depend on a weight and its place alone, so the order of summation cannot
change a digest, and changes projections by rounding errors of float64.

Shapes: N weight, J projection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_PROJECTIONS = 61
"""a prime, so that no width of a layer puts one of its columns into a projection of its own"""
CHUNK = {"cpu": NUM_PROJECTIONS * 2**9, "cuda": NUM_PROJECTIONS * 2**18}
"""weights that are widened to 64 bits at a time, by device: on the CPU as many as its cache holds"""
DIGEST_KIND = "sums128:"
"""how digests of this version begin; those of earlier versions are SHA-256"""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FIRST, _SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64  # odd


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a set of weights w.

    `digest` names every bit. `projections` are J seeded sums r[j] = sum of +w or -w over every J-th weight, whose
    expected squared distance between two sets of weights is that of the weights themselves; one such estimate has a
    relative standard deviation of sqrt(2 / J), 18 %.
    """

    digest: str
    projections: tuple[float, ...]


def fingerprint(named: Iterable[tuple[str, Tensor]]) -> Fingerprint:
    """Identity of tensors by their names, shapes, types and bits.

    Args:
        named: tensors in the order of their names; one at a time is looked at, where it lies.
    """
    text = hashlib.sha256()
    projections_J = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64)
    for name, tensor in named:
        label = f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode()
        sums, projected_J = _sums(tensor.detach().contiguous().flatten(), seed=_seed(name))
        text.update(label + b"".join(value.to_bytes(8, "little", signed=True) for value in sums))
        projections_J += projected_J
    return Fingerprint(DIGEST_KIND + text.hexdigest()[:32], tuple(projections_J.tolist()))


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little", signed=True)


def _sums(value_N: Tensor, *, seed: int) -> tuple[tuple[int, int], Tensor]:
    """Two sums modulo 2^64 of a hash of each weight's bits and place, and the projections."""
    total, weighted = 0, 0
    projections_J = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64)
    chunk = CHUNK[value_N.device.type]
    for start in range(0, len(value_N), chunk):
        part_N = value_N[start : start + chunk]
        key_N = _hashed(torch.arange(start, start + len(part_N), device=part_N.device).add_(seed))
        signed_N = torch.where(key_N < 0, -part_N.double(), part_N.double())
        rows = -(-len(part_N) // NUM_PROJECTIONS)
        signed_N = torch.nn.functional.pad(signed_N, (0, rows * NUM_PROJECTIONS - len(part_N)))
        projections_J += signed_N.view(rows, NUM_PROJECTIONS).sum(dim=0).cpu()
        hash_N = _hashed(key_N + part_N.view(_INTEGERS[part_N.element_size()]))
        total += int(hash_N.sum())
        weighted += int(hash_N.mul_(key_N).sum())
    return (_wrapped(total), _wrapped(weighted)), projections_J


def _hashed(value_N: Tensor) -> Tensor:
    """Each integer's 64 bits, mixed in place: products modulo 2^64 carry bits up, the shift carries them down."""
    value_N.mul_(_FIRST)
    value_N.bitwise_xor_(value_N >> 32)
    return value_N.mul_(_SECOND)


def _wrapped(value: int) -> int:
    """The signed 64-bit integer with the same last 64 bits."""
    return (value + 2**63) % 2**64 - 2**63
