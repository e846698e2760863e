"""The weight of the entropy bonus from update to update.

Shapes: B row of a mini-batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hacpo_core import algo
from hacpo_core.data.batches import Minibatch
from hacpo_core.engines.learning.outcomes import RowOutcomes
from hacpo_core.methods.base import Objective, RowKind, State

KEY = "entropy control"
"""key in the state of an objective; no agent has a name with a blank, which other keys may be"""


@dataclass(frozen=True, slots=True)
class EntropyControl:
    """Weight of the entropy bonus before an update.

    Attributes:
        objective: the method's.
        coefficient: c of `algo.entropy.adapted_coefficient`.
        entropy: mean over the own tokens of the update before, nats; None before the first one, which has no bonus.
    """

    objective: Objective
    coefficient: float
    entropy: float | None = None

    @classmethod
    def of(cls, objective: Objective, state: State) -> EntropyControl:
        """Continues from the state that a step before committed."""
        saved: Mapping[str, Any] | None = state.get(KEY)
        return cls(objective, objective.entropy_coef) if saved is None else cls(objective, **saved)

    @property
    def weighted(self) -> Objective:
        """The objective with the weight that the bonus has in the update."""
        target = self.objective.entropy_target
        if target is None:
            return self.objective
        entropy = math.inf if self.entropy is None else self.entropy
        coefficient = algo.entropy.applied_coefficient(self.coefficient, entropy, target=target)
        return replace(self.objective, entropy_coef=coefficient)

    @property
    def state(self) -> dict[str, Any]:
        """What the step commits beside the objective's own state; nothing if the weight is constant."""
        if self.objective.entropy_target is None:
            return {}
        return {KEY: {"coefficient": self.coefficient, "entropy": self.entropy}}

    def after(self, rows: Minibatch, outcomes: RowOutcomes) -> EntropyControl:
        """The weight for the next update, from what this one saw of its rows; the same if none was the learner's."""
        objective, num_tokens_B = self.objective, rows.tokens.responses.lengths[outcomes.row_B]
        num_tokens_B = num_tokens_B * (rows.kind_B[outcomes.row_B] != RowKind.FOREIGN)
        if objective.entropy_target is None or not num_tokens_B.any():
            return self
        entropy = float((num_tokens_B * outcomes.figures["entropy"]).sum() / num_tokens_B.sum())
        coefficient = algo.entropy.adapted_coefficient(
            self.coefficient,
            entropy,
            target=objective.entropy_target,
            step=objective.entropy_step,
            max_coefficient=objective.max_entropy_coef,
        )
        return EntropyControl(objective, coefficient, entropy)


def without_control(state: State) -> State:
    """An objective's own part of its committed state."""
    return {key: value for key, value in state.items() if key != KEY}
