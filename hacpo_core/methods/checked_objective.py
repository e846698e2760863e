"""Checks of an objective's results. They need torch; `checks.py` must not import it, for plans and the dashboard."""

from __future__ import annotations

import torch
from torch import Tensor

from hacpo_core.errors import MethodError
from hacpo_core.methods.base import ROW_FIGURES, ROW_KEYS, LossRows, Objective, Surrogate
from hacpo_core.methods.checks import called


def checked_surrogate(objective: Objective, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
    """An objective's surrogate of a micro-batch.

    Raises:
        MethodError: it raised an error, or returned anything but finite columns with one number per row.
    """
    owner = f"method.objective ({objective.name}), update {update}: surrogate"
    surrogate = called(owner, lambda: objective.surrogate(rows, logprob_BT, update=update))
    if not isinstance(surrogate, Surrogate):
        raise MethodError(f"{owner}: returned {type(surrogate).__name__}, expected a Surrogate")
    reserved = sorted(set(surrogate.figures) & {*ROW_KEYS, *ROW_FIGURES})
    if reserved:
        raise MethodError(f"{owner}: figures: got {reserved}, which every row has; use other names")
    for name, value in {"value": surrogate.value_B, **surrogate.columns}.items():
        if not isinstance(value, Tensor) or value.shape != rows.kind_B.shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            expected = f"expected a tensor of one number per row, {tuple(rows.kind_B.shape)}"
            raise MethodError(f"{owner}: {name}: got {got}, {expected}")
    if logprob_BT.requires_grad and not surrogate.value_B.requires_grad:
        raise MethodError(f"{owner}: value: got no gradient, expected one; compute it from logprob_BT without detach()")
    is_finite = torch.stack([getattr(surrogate, name).isfinite().all() for name in ("value_B", "ratio_B")]).all()
    inputs = (logprob_BT[rows.mask_BT], rows.advantage_B, rows.weight_B)
    if not is_finite and all(bool(each.isfinite().all()) for each in inputs):  # otherwise training diverged
        raise MethodError(f"{owner}: got nan or infinity in value or ratio, expected finite values; clip the ratio")
    return surrogate


def checked_row_weights(objective: Objective, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
    """An objective's weights of a mini-batch's rows.

    Raises:
        MethodError: it raised an error, or returned anything but one finite number per row.
    """
    owner = f"method.objective ({objective.name}): row_weights"
    weight_B = called(owner, lambda: objective.row_weights(source_B, num_tokens_B, max_tokens=max_tokens))
    if not isinstance(weight_B, Tensor) or weight_B.shape != source_B.shape:
        got = tuple(weight_B.shape) if isinstance(weight_B, Tensor) else type(weight_B).__name__
        raise MethodError(f"{owner}: returned {got}, expected a tensor of one number per row, {tuple(source_B.shape)}")
    if not bool(weight_B.isfinite().all()):
        raise MethodError(f"{owner}: returned nan or infinity, expected finite weights")
    return weight_B
