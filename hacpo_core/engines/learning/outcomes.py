"""What a learner's updates measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from hacpo_core.methods.base import State
from hacpo_core.methods.build import TrainedRows


@dataclass(frozen=True, slots=True)
class MinibatchOutcome:
    """One update: objective values, gradient norm before clipping, learning rate, rows and tokens.

    In `cross_objective`, rows whose gradient clipping set to 0 count as 0. `num_skipped` counts rows left out of the
    passes because their gradient is 0.
    """

    update: int
    own_objective: float
    cross_objective: float
    grad_norm: float
    learning_rate: float
    num_rows: int
    num_skipped: int
    num_trained_tokens: int


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """All updates of one learner in one step.

    `log_centers` and `objective_state` are what the objective's `log_centers` returned: by agent, and its next state.
    """

    minibatches: tuple[MinibatchOutcome, ...]
    rows: TrainedRows
    log_centers: Mapping[str, float]
    objective_state: State
