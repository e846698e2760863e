"""LUSPO's objective: GSPO's, each response weighted by its length.

Shapes: B row of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.methods.objectives.sequence_clip import SequenceClip

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LengthUnbiased(SequenceClip):
    """n min(s w A, clip(s, 1 - low, 1 + high) w A), n tokens of the response.

    The gradient of s spreads one response's weight over its n tokens; the factor gives each token the same weight.

    Source: LUSPO (2602.05261).
    """

    def row_weights(self, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
        """Tokens of the row over rows of the mini-batch."""
        return algo.objectives.length_weights(self.groups(source_B), num_tokens_B)
