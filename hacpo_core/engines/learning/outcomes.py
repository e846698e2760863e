"""What a learner's updates measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Positions
from hacpo_core.methods.base import State


@dataclass(frozen=True, slots=True, eq=False)
class RowOutcomes:
    """Measurements of an update's rows, as columns, in the order of its passes. B row.

    Attributes:
        row_B: position of the row in its mini-batch.
        update_B: index m of that mini-batch.
        ratio_B: sequence importance ratio before the row's update, as `Surrogate.ratio_B`.
        floor_B, ceiling_B: bounds, of the ratio or of each token's ratio.
        below_B, above_B: share of the row beyond these bounds: 0 or 1, or a share of tokens.
        stopped_share_B: share of the row whose gradient clipping set to 0: 0 or 1, or a share of tokens.
        kl_B: mean KL divergence from the reference, nats.
        correction_B: mean correction weight of its tokens, see `Objective.correction`; 1 without correction.
        entropy_B: mean entropy of the learner's next-token distribution, nats.
    """

    row_B: NDArray[np.int64]
    update_B: NDArray[np.int64]
    ratio_B: NDArray[np.float64]
    floor_B: NDArray[np.float64]
    ceiling_B: NDArray[np.float64]
    below_B: NDArray[np.float64]
    above_B: NDArray[np.float64]
    stopped_share_B: NDArray[np.float64]
    kl_B: NDArray[np.float64]
    correction_B: NDArray[np.float64]
    entropy_B: NDArray[np.float64]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.row_B)

    @classmethod
    def none(cls) -> RowOutcomes:
        """No rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), *(np.empty(0) for _ in range(9)))

    @classmethod
    def joined(cls, parts: Sequence[RowOutcomes]) -> RowOutcomes:
        """The rows of all parts (at least one), concatenated."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def take(self, rows: Positions) -> RowOutcomes:
        """Some rows, in that order."""
        return RowOutcomes(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class MinibatchOutcome:
    """One update: objective values, gradient norm before clipping, learning rate, rows and tokens.

    In `cross_objective`, rows whose gradient clipping set to 0 count as 0. `num_skipped` counts rows left out of the
    passes because their gradient is 0. `gradient_cosine` is the cosine between the gradients of J_homo and J_hete; None
    if it was not measured.
    """

    update: int
    own_objective: float
    cross_objective: float
    grad_norm: float
    learning_rate: float
    num_rows: int
    num_skipped: int
    num_trained_tokens: int
    gradient_cosine: float | None


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """All updates of one learner in one step.

    `log_centers` and `objective_state` are what the objective's `log_centers` returned: by agent, and its next state.
    """

    minibatches: tuple[MinibatchOutcome, ...]
    rows: RowOutcomes
    log_centers: Mapping[str, float]
    objective_state: State
