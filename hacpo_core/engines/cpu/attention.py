"""Attention by two products: on the CPU, torch's fused kernel takes a microsecond or two for each sequence and head.

Shapes: B sequence, R row, L place in a row, T token, Q query, G query head of a key head, H key head, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hacpo_core.engines.cpu.switch import has_speedups

SHORT = 96
"""places of a row up to which two products are faster than torch's fused attention, gradients included"""


def pays_by_products(query: Tensor) -> bool:
    """Whether `by_products` may be faster than torch's fused attention and as precise: on the CPU, from fp32 on."""
    return has_speedups() and query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)


def by_products(
    query_BHQK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, mask: Tensor | None, scaling: float | None = None
) -> Tensor:
    """Attention in its plainest form.

    Args:
        query_BHQK: queries.
        key_BHTK: keys.
        value_BHTK: values.
        mask: what is added to the scores, to be broadcast to BHQT; None: nothing.
        scaling: of the scores; None: one over the root of K.

    Returns:
        attended_BHQK.
    """
    scale = query_BHQK.shape[-1] ** -0.5 if scaling is None else scaling
    scores_BHQT = (query_BHQK * scale) @ key_BHTK.transpose(-1, -2)
    if mask is not None:
        scores_BHQT = scores_BHQT + mask
    return scores_BHQT.softmax(dim=-1) @ value_BHTK


def causal_by_products(query_RHLK: Tensor, key_RHLK: Tensor, value_RHLK: Tensor, scaling: float | None) -> Tensor:
    """attended_RLHK; query heads that share a key head stand behind one another as its queries."""
    rows, num_keys, length, width = value_RHLK.shape
    query_RHGLK = query_RHLK.unflatten(1, (num_keys, -1))
    groups = query_RHGLK.shape[2]
    ahead_LL = query_RHLK.new_full((length, length), -torch.inf).triu(1)
    attended = by_products(query_RHGLK.flatten(2, 3), key_RHLK, value_RHLK, ahead_LL.repeat(groups, 1), scaling)
    return attended.view(rows, num_keys, groups, length, width).permute(0, 3, 1, 2, 4).reshape(rows, length, -1, width)
