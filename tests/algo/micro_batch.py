"""A micro-batch in numbers of one's choice, and an objective's value on it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hacpo_core.engines.passes.loss import objective_values
from hacpo_core.methods.objective import LossRows, Objective, RowKind, Surrogate


@dataclass(frozen=True)
class Value:
    """Sums over own and over foreign rows, the latter also without rows whose gradient clipping set to 0."""

    own_objective: Tensor
    cross_objective: Tensor
    live_cross_objective: Tensor
    surrogate: Surrogate
    columns: dict[str, Tensor]


def value_of(
    objective: Objective, rows: LossRows, logprob_BT: Tensor, row_weight_B: Tensor, *, update: int, **options: Any
) -> Value:
    value_B, columns = objective_values(objective, rows, logprob_BT, row_weight_B, update=update, **options)
    cross_B = torch.where(rows.is_foreign_B, value_B, 0.0)
    return Value(
        own_objective=torch.where(rows.is_foreign_B, 0.0, value_B).sum(),
        cross_objective=cross_B.sum(),
        live_cross_objective=cross_B.detach().where(columns["stopped_share"] < 1.0, 0.0).sum(),
        surrogate=objective.surrogate(rows, logprob_BT, update=update),
        columns=columns,
    )


@dataclass(frozen=True)
class MicroBatch:
    """What `LossRows` holds, with the rows' weights and the reference's log-probabilities."""

    mask_BT: Tensor
    is_own_B: Tensor
    advantage_B: Tensor
    weight_B: Tensor
    old_mean_logprob_B: Tensor
    row_weight_B: Tensor
    old_logprob_BT: Tensor | None = None
    reference_logprob_BT: Tensor | None = None
    correction_BT: Tensor | None = None

    def rows(self) -> LossRows:
        old_BT = torch.zeros_like(self.mask_BT, dtype=self.advantage_B.dtype)
        return LossRows(
            mask_BT=self.mask_BT,
            kind_B=torch.where(self.is_own_B, int(RowKind.OWN), int(RowKind.FOREIGN)),
            source_B=(~self.is_own_B).long(),
            advantage_B=self.advantage_B,
            weight_B=self.weight_B,
            old_mean_logprob_B=self.old_mean_logprob_B,
            old_logprob_BT=old_BT if self.old_logprob_BT is None else self.old_logprob_BT,
            correction_BT=self.correction_BT,
        )

    def value(self, objective: Objective, logprob_BT: Tensor, *, update: int = 0) -> Value:
        return value_of(
            objective,
            self.rows(),
            logprob_BT,
            self.row_weight_B,
            update=update,
            num_own_tokens=int(self.mask_BT[self.is_own_B].sum()),
            reference_logprob_BT=self.reference_logprob_BT,
        )

    def part(self, picked: Any) -> MicroBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value if value is None else value[picked] for name, value in values.items()})
