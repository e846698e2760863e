"""What a learner's updates measured.

Shapes: B row of an update, or of all updates of a step, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Positions
from hacpo_core.methods.base import ROW_FIGURES, State


@dataclass(frozen=True, slots=True, eq=False)
class RowOutcomes:
    """Measurements of an update's rows, in the order of its passes. B row.

    Attributes:
        row_B: position of the row in its mini-batch.
        update_B: index m of the update; with several iterations, each mini-batch has several.
        figures: by name, one number per row, before the row's update: `ratio`, the sequence importance ratio; `floor`
            and `ceiling`, its bounds or those of each token's ratio; `below_share`, `above_share` and `stopped_share`,
            the shares of the row beyond them and without gradient: 0 or 1, or a share of tokens; `kl` and `correction`,
            see `objective_values`; `entropy`, the mean entropy of the learner's next-token distribution, nats; and the
            objective's own `Surrogate.figures`.
    """

    row_B: NDArray[np.int64]
    update_B: NDArray[np.int64]
    figures: Mapping[str, NDArray[np.float64]]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.row_B)

    @classmethod
    def none(cls) -> RowOutcomes:
        """No rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), {name: np.empty(0) for name in ROW_FIGURES})

    @classmethod
    def joined(cls, parts: Sequence[RowOutcomes]) -> RowOutcomes:
        """The rows of all parts, concatenated."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return cls.none()
        return cls(
            np.concatenate([part.row_B for part in filled]),
            np.concatenate([part.update_B for part in filled]),
            {name: np.concatenate([part.figures[name] for part in filled]) for name in filled[0].figures},
        )

    def take(self, rows: Positions) -> RowOutcomes:
        """Some rows, in that order."""
        figures = {name: value_B[rows] for name, value_B in self.figures.items()}
        return RowOutcomes(self.row_B[rows], self.update_B[rows], figures)


@dataclass(frozen=True, slots=True)
class MinibatchOutcome:
    """One update: objective values, gradient norm before clipping, learning rate, rows and tokens.

    In `cross_objective`, rows whose gradient clipping set to 0 count as 0. `num_skipped` counts rows left out of the
    passes because their gradient is 0. `gradient_cosine` is the cosine between the gradients of J_homo and J_hete; None
    if it was not measured. `entropy_coef` is the weight of the entropy bonus; None without one.
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
    entropy_coef: float | None = None


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """All updates of one learner in one step.

    `log_centers` and `objective_state` are what the objective's `log_centers` returned: by agent, and its next state.
    """

    minibatches: tuple[MinibatchOutcome, ...]
    rows: RowOutcomes
    log_centers: Mapping[str, float]
    objective_state: State
