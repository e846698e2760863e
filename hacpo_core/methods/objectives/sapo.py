"""SAPO's objective: a smooth gate on each token's ratio instead of clipping.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.objective import LossRows, Surrogate
from hacpo_core.methods.objectives.token_level import AGGREGATIONS, TokenLevel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sapo(TokenLevel):
    """sum over tokens of (4 / tau) sigmoid(tau (r - 1)) A; tau depends on the sign of A.

    Source: SAPO (2511.20347).
    """

    token_aggregation: str = setting("seq_mean_token_mean", "how tokens are averaged", choices=AGGREGATIONS)
    positive_temperature: float = setting(1.0, "tau where the advantage is positive", above=0, at_most=1e3)
    negative_temperature: float = setting(1.05, "tau where the advantage is negative", above=0, at_most=1e3)

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Surrogate of own rows, without clipping."""
        ratio_BT = algo.ratios.token_ratio(logprob_BT, rows.old_logprob_BT)
        value_BT = algo.objectives.gated_surrogate(
            ratio_BT, rows.advantage_BT, positive=self.positive_temperature, negative=self.negative_temperature
        )
        stopped_BT = rows.mask_BT.new_zeros(rows.mask_BT.shape)
        return self.summed(rows, logprob_BT, value_BT, stopped_BT, algo.clipping.UNBOUNDED)
