"""GMPO's objective: the geometric mean of a response's token ratios, each clipped separately.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.objective import LossRows, Objective, Surrogate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gmpo(Objective):
    """A exp( mean over tokens of the log-ratio, clipped to [-log_low, log_high] where that lowers the objective ).

    Source: GMPO (2507.20673).
    """

    log_low: float = setting(
        0.4, "token log-ratios are clipped to at least -log_low", unit="nats", at_least=0, at_most=10
    )
    log_high: float = setting(
        0.4, "token log-ratios are clipped to at most log_high", unit="nats", at_least=0, at_most=10
    )

    reads_partners = False
    needs_token_ratios = True

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Surrogate of own rows."""
        log_ratio_BT = algo.ratios.token_log_ratio(logprob_BT, rows.old_logprob_BT)

        def share(is_counted_BT: Tensor) -> Tensor:
            return algo.ratios.masked_mean(is_counted_BT.to(logprob_BT.dtype), rows.mask_BT)

        ratio_B, stopped_BT = algo.objectives.geometric_ratio(
            log_ratio_BT, rows.weighted_advantage_B, rows.mask_BT, low=self.log_low, high=self.log_high
        )
        return Surrogate(
            value_B=ratio_B * rows.weighted_advantage_B,
            ratio_B=algo.ratios.sequence_ratio(logprob_BT, rows.mask_BT, rows.old_mean_logprob_B),
            stopped_share_B=share(stopped_BT),
            floor_B=ratio_B.new_full(ratio_B.shape, math.exp(-self.log_low)),
            ceiling_B=ratio_B.new_full(ratio_B.shape, math.exp(self.log_high)),
            below_share_B=share(log_ratio_BT < -self.log_low),
            above_share_B=share(log_ratio_BT > self.log_high),
        )
