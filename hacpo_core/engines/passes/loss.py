"""Value of an objective on a micro-batch from the rows' surrogates, KL penalties and weights.

Shapes: B sequence (row of a micro-batch), T token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hacpo_core.algo.objectives import kl_to_reference
from hacpo_core.algo.ratios import masked_mean
from hacpo_core.methods.base import LossRows, Objective, Surrogate
from hacpo_core.methods.checked_objective import checked_surrogate


@dataclass(frozen=True, slots=True, eq=False)
class LossValue:
    """`own` and `cross` are J_homo and J_hete: scalars with gradient; `own` includes the KL penalty. `kl_B` is in nats.
    `correction_B` is the mean weight that corrects each row for the difference between sampler and learner.

    `live_cross` is J_hete of the rows whose gradient clipping did not set to 0.
    """

    own: Tensor
    cross: Tensor
    live_cross: Tensor
    surrogate: Surrogate
    kl_B: Tensor
    correction_B: Tensor


def loss_value(
    objective: Objective,
    rows: LossRows,
    logprob_BT: Tensor,
    row_weight_B: Tensor,
    *,
    update: int,
    num_own_tokens: int = 0,
    reference_logprob_BT: Tensor | None = None,
) -> LossValue:
    """The objective of a micro-batch, to be maximised.

        J = sum over rows of row_weight * (correction * surrogate - kl_coef * KL),   KL on rows that are not foreign

    or, with `kl_aggregation: own_tokens`, minus kl_coef * the mean KL over all tokens of such rows.

    Args:
        objective: the method's.
        rows: the micro-batch.
        logprob_BT: log-probabilities (nats) under the learner's current policy, with gradient.
        row_weight_B: from the whole mini-batch, see `Objective.row_weights`.
        update: m, number of updates that the learner has already made in this step.
        num_own_tokens: tokens of the whole mini-batch's rows that are not foreign; read with
            `objective.kl_aggregation: own_tokens`.
        reference_logprob_BT: nats; required if `kl_coef` > 0.

    Raises:
        MethodError: the objective raised an error, or returned anything but a surrogate with one number per row.
    Source: HACPO Eq. 47-53; GRPO; GSPO.
    """
    surrogate = checked_surrogate(objective, rows, logprob_BT, update=update)
    value_B, correction_B = surrogate.value_B, torch.ones_like(rows.advantage_B)
    if rows.correction_BT is not None:
        correction_B = masked_mean(rows.correction_BT, rows.mask_BT)
        if objective.correction_level == "sequence":
            value_B = value_B * correction_B
    weight_B = row_weight_B.to(logprob_BT.dtype)
    kl_B, own_B = torch.zeros_like(rows.advantage_B), value_B * weight_B
    if objective.kl_coef > 0:
        assert reference_logprob_BT is not None, "a KL term needs the reference's log-probabilities"
        kl_BT = kl_to_reference(logprob_BT, reference_logprob_BT) * rows.mask_BT
        kl_B = masked_mean(kl_BT, rows.mask_BT)
        if objective.kl_aggregation == "own_tokens":
            own_B = own_B - objective.kl_coef * kl_BT.sum(dim=1) / max(num_own_tokens, 1)
        else:
            own_B = (value_B - objective.kl_coef * (kl_BT.sum(dim=1) if objective.is_token_level else kl_B)) * weight_B
    cross_B = torch.where(rows.is_foreign_B, value_B, 0.0) * weight_B
    return LossValue(
        own=torch.where(rows.is_foreign_B, 0.0, own_B).sum(),
        cross=cross_B.sum(),
        live_cross=cross_B.detach().where(surrogate.stopped_share_B < 1.0, 0.0).sum(),
        surrogate=surrogate,
        kl_B=kl_B.detach(),
        correction_B=correction_B,
    )
