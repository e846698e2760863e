"""A micro-batch as an objective reads it, and the objective's value on it: surrogates, KL penalties and weights.

Shapes: B sequence (row of a micro-batch), T token, N response token of all rows.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hacpo_core.algo.objectives import kl_to_reference
from hacpo_core.algo.ratios import masked_mean
from hacpo_core.data.batches import Minibatch
from hacpo_core.methods.checks import check_surrogate, errors_of
from hacpo_core.methods.objective import LossRows, Objective, RowKind


def padded(value_N: Tensor, mask_BT: Tensor) -> Tensor:
    """value_BT: the values, row by row, where the mask is True, and 0 elsewhere."""
    return value_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, value_N)


def loss_rows(
    minibatch: Minibatch,
    objective: Objective,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> LossRows:
    """Rows of a mini-batch as one micro-batch.

    Args:
        minibatch: the rows.
        objective: corrects for the difference between sampler and learner, if it does.
        device, dtype: of the columns.
    """
    lengths_B = torch.from_numpy(minibatch.tokens.responses.lengths).to(device)
    mask_BT = torch.arange(int(lengths_B.max()), device=device)[None, :] < lengths_B[:, None]

    def column(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(device, dtype)

    kind_B = torch.from_numpy(minibatch.kind_B).to(device)
    has_old_BT = mask_BT & (kind_B != RowKind.FOREIGN)[:, None]
    old_BT = padded(column(minibatch.old_logprobs.value_N), has_old_BT)
    correction_BT = teacher_advantage_BT = None
    if len(minibatch.teacher_advantages.value_N):
        has_teacher_B = torch.from_numpy(minibatch.teacher_advantages.lengths > 0).to(device)
        teacher_advantage_BT = padded(column(minibatch.teacher_advantages.value_N), mask_BT & has_teacher_B[:, None])
    if objective.correction != "none":
        sampler_BT = padded(column(minibatch.sampler_logprobs.value_N), has_old_BT)
        weight_BT = objective.correction_weights(old_BT, sampler_BT, mask_BT)
        correction_BT = torch.where(has_old_BT | ~mask_BT, weight_BT, 1.0)
    return LossRows(
        mask_BT=mask_BT,
        kind_B=kind_B,
        source_B=torch.from_numpy(minibatch.source_B).to(device),
        advantage_B=column(minibatch.advantage_B),
        weight_B=column(minibatch.weight_B),
        old_mean_logprob_B=column(minibatch.old_mean_logprob_B),
        old_logprob_BT=old_BT,
        teacher_advantage_BT=teacher_advantage_BT,
        correction_BT=correction_BT,
        log_center_B=None if minibatch.log_center_B is None else column(minibatch.log_center_B),
    )


def objective_values(
    objective: Objective,
    rows: LossRows,
    logprob_BT: Tensor,
    row_weight_B: Tensor,
    *,
    update: int,
    num_own_tokens: int = 0,
    reference_logprob_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Each row's part of the objective of a micro-batch, to be maximised (see `Objective`), and what was measured.

    Args:
        logprob_BT: log-probabilities (nats) under the learner's current policy, with gradient.
        row_weight_B: from the whole mini-batch, see `Objective.row_weights`.
        update: m, number of updates already made in this step.
        num_own_tokens: tokens of the whole mini-batch's rows that are not foreign.
        reference_logprob_BT: nats; required if `kl_coef` > 0.
        entropy_BT: H, nats, with gradient, 0 outside the mask; required if `entropy_coef` > 0.

    Returns:
        value_B, with gradient; its sum over foreign rows is J_hete, that over the others J_homo with KL penalty and
        entropy bonus. Columns: the surrogate's; `kl`, mean KL divergence from the reference, nats; `correction`, mean
        weight that corrects for the difference between sampler and learner.

    Raises:
        MethodError: the objective raised an error, or returned anything but a surrogate with one number per row.
    Source: HACPO Eq. 47-53; GRPO; GSPO. Entropy bonus as in TRL: a mean over tokens, whatever the surrogate's mean is.
    """
    owner = f"method.objective ({objective.name}), update {update}: surrogate"
    with errors_of(owner):
        surrogate = objective.surrogate(rows, logprob_BT, update=update)
        check_surrogate(surrogate, rows, logprob_BT, owner)
    value_B, row_weight_B = surrogate.value_B, row_weight_B.to(logprob_BT.dtype)
    correction_B, kl_B = torch.ones_like(rows.advantage_B), torch.zeros_like(rows.advantage_B)
    if rows.correction_BT is not None:
        correction_B = masked_mean(rows.correction_BT, rows.mask_BT)
        value_B = value_B * correction_B if objective.correction_level == "sequence" else value_B
    own_B = value_B * row_weight_B
    if objective.kl_coef > 0:
        assert reference_logprob_BT is not None, "a KL term needs the reference's log-probabilities"
        kl_BT = kl_to_reference(logprob_BT, reference_logprob_BT) * rows.mask_BT
        kl_B = masked_mean(kl_BT, rows.mask_BT)
        own_B = _with_kl(objective, value_B, row_weight_B, kl_BT, kl_B, num_own_tokens)
    if objective.entropy_coef > 0:
        assert entropy_BT is not None, "an entropy bonus needs entropies"
        own_B = own_B + objective.entropy_coef * entropy_BT.sum(dim=1) / max(num_own_tokens, 1)
    objective_B = torch.where(rows.is_foreign_B, value_B * row_weight_B, own_B)
    return objective_B, {**surrogate.columns, "kl": kl_B, "correction": correction_B}


def _with_kl(
    objective: Objective, value_B: Tensor, row_weight_B: Tensor, kl_BT: Tensor, kl_B: Tensor, num_own_tokens: int
) -> Tensor:
    """Weighed values of own rows, minus each row's part of the KL term according to `kl_aggregation`."""
    if objective.kl_aggregation == "own_tokens":
        return value_B * row_weight_B - objective.kl_coef * kl_BT.sum(dim=1) / max(num_own_tokens, 1)
    return (value_B - objective.kl_coef * (kl_BT.sum(dim=1) if objective.is_token_level else kl_B)) * row_weight_B
