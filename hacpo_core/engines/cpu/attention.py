"""Attention by two matrix products: on the CPU, torch's fused kernel costs 1 to 2 µs per sequence and head.

Shapes: B sequence, R row, L place in a row, T token, Q query, G query head of a key head, H key head, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHORT = 96
"""longest row for which two products are faster than torch's fused attention, gradients included"""


def is_precise(query: Tensor) -> bool:
    """Whether `by_products` sums as precisely as torch's fused attention: on the CPU, in fp32 or fp64."""
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)


def by_products(
    query_BHQK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, mask: Tensor | None, scaling: float | None = None
) -> Tensor:
    """Attention computed directly from its definition.

    Args:
        query_BHQK: queries.
        key_BHTK: keys.
        value_BHTK: values.
        mask: added to the scores, broadcast to BHQT; None: no mask.
        scaling: factor of the scores; None: 1 / sqrt(K).

    Returns:
        attended_BHQK.
    """
    scale = query_BHQK.shape[-1] ** -0.5 if scaling is None else scaling
    scores_BHQT = (query_BHQK * scale) @ key_BHTK.transpose(-1, -2)
    if mask is not None:
        scores_BHQT = scores_BHQT + mask
    return scores_BHQT.softmax(dim=-1) @ value_BHTK


def causal_by_products(query_RHLK: Tensor, key_RHLK: Tensor, value_RHLK: Tensor, scaling: float | None) -> Tensor:
    """Causal attention; the query heads of one key head are treated as more queries of that head.

    Returns:
        attended_RLHK.
    """
    rows, num_keys, length, width = value_RHLK.shape
    query_RHGLK = query_RHLK.unflatten(1, (num_keys, -1))
    groups = query_RHGLK.shape[2]
    ahead_LL = query_RHLK.new_full((length, length), -torch.inf).triu(1)
    attended = by_products(query_RHGLK.flatten(2, 3), key_RHLK, value_RHLK, ahead_LL.repeat(groups, 1), scaling)
    return attended.view(rows, num_keys, groups, length, width).permute(0, 3, 1, 2, 4).reshape(rows, length, -1, width)
