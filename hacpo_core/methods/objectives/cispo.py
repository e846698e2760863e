"""CISPO's objective: REINFORCE on every token, weighted by a clipped importance ratio without gradient.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.objective import LossRows, Surrogate
from hacpo_core.methods.objectives.token_level import TokenLevel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cispo(TokenLevel):
    """sum over tokens of sg(clip(r, ratio_floor, ratio_ceiling)) A log pi.

    Source: MiniMax-M1 (2506.13585); ceiling 5 from TRL's documentation, which cites ScaleRL (2510.13786).
    """

    ratio_floor: float = setting(0.0, "lower bound of a token's importance ratio", at_least=0, at_most=1)
    ratio_ceiling: float = setting(5.0, "upper bound of a token's importance ratio", at_least=1, at_most=1e6)

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Surrogate of own rows. Clipping stops no token's gradient."""
        bounds = algo.clipping.Bounds(self.ratio_floor, self.ratio_ceiling)
        ratio_BT = algo.ratios.token_ratio(logprob_BT, rows.old_logprob_BT)
        value_BT = algo.objectives.detached_ratio_surrogate(logprob_BT, ratio_BT, rows.advantage_BT, bounds)
        return self.summed(rows, logprob_BT, value_BT, rows.mask_BT.new_zeros(rows.mask_BT.shape), bounds)
