"""Checks of an objective's results. They need torch; `checks.py` must not import it, for plans and the dashboard.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hacpo_core.errors import MethodError
from hacpo_core.methods.base import ROW_FIGURES, ROW_KEYS, LossRows, Objective, Surrogate
from hacpo_core.methods.checks import errors_of


def checked_surrogate(objective: Objective, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
    """An objective's surrogate of a micro-batch.

    Raises:
        MethodError: it raised an error, or returned anything but finite columns with one number per row.
    """
    owner = f"method.objective ({objective.name}), update {update}: surrogate"
    with errors_of(owner):
        surrogate = objective.surrogate(rows, logprob_BT, update=update)
        reserved_names = sorted(set(surrogate.figures) & {*ROW_KEYS, *ROW_FIGURES})
        if reserved_names:
            raise MethodError(f"{owner}: figures: got {reserved_names}, which every row has; use other names")
        for name, value in {"value": surrogate.value_B, **surrogate.columns}.items():
            _check_shape(value, rows.kind_B, f"{owner}: {name}")
        if logprob_BT.requires_grad and not surrogate.value_B.requires_grad:
            raise MethodError(
                f"{owner}: value: got no gradient, expected one; compute it from logprob_BT without detach()"
            )
        is_finite = torch.stack([getattr(surrogate, name).isfinite().all() for name in ("value_B", "ratio_B")]).all()
        inputs = (logprob_BT[rows.mask_BT], rows.advantage_B, rows.weight_B)
        if not is_finite and all(bool(tensor.isfinite().all()) for tensor in inputs):  # otherwise training diverged
            raise MethodError(f"{owner}: got nan or infinity in value or ratio, expected finite values; clip the ratio")
    return surrogate


def checked_row_weights(objective: Objective, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
    """An objective's weights of a mini-batch's rows.

    Raises:
        MethodError: it raised an error, or returned anything but one finite number per row.
    """
    owner = f"method.objective ({objective.name}): row_weights"
    with errors_of(owner):
        weight_B = objective.row_weights(source_B, num_tokens_B, max_tokens=max_tokens)
        _check_shape(weight_B, source_B, owner)
        if not bool(weight_B.isfinite().all()):
            raise MethodError(f"{owner}: returned nan or infinity, expected finite weights")
    return weight_B


def _check_shape(value: Tensor, row_B: Tensor, what: str) -> None:
    if tuple(value.shape) != tuple(row_B.shape):
        expected = f"expected a tensor of one number per row, {tuple(row_B.shape)}"
        raise MethodError(f"{what}: got {tuple(value.shape)}, {expected}")
