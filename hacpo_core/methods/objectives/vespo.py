"""VESPO's objective: REINFORCE on every token, weighted by a smooth function of the response's importance ratio.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import LossRows, Surrogate
from hacpo_core.methods.objectives.token_level import TokenLevel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Vespo(TokenLevel):
    """sum over tokens of sg(phi(w)) A log pi, phi(w) = w^k exp(lambda (1 - w)), w the product of the token ratios.

    phi(1) = 1, and phi vanishes on both sides. k and lambda depend on the sign of the advantage. With `correction`, the
    weight of a row multiplies its value, as with every objective here; TRL takes it into w.

    Source: VESPO (2602.10693), with TRL's defaults.
    """

    positive_power: float = setting(2.0, "k where A >= 0", at_least=0, at_most=100)
    positive_decay: float = setting(3.0, "lambda where A >= 0", above=0, at_most=100)
    negative_power: float = setting(3.0, "k where A < 0", at_least=0, at_most=100)
    negative_decay: float = setting(2.0, "lambda where A < 0", above=0, at_most=100)

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Surrogate of own rows. Nothing stops a token's gradient altogether."""
        log_ratio_BT = algo.ratios.token_log_ratio(logprob_BT.detach(), rows.old_logprob_BT)
        log_ratio_B = (log_ratio_BT * rows.mask_BT).sum(dim=1)
        is_good_B = rows.weighted_advantage_B >= 0
        gamma = algo.objectives.gamma_weight
        weight_B = gamma(log_ratio_B, power=self.positive_power, decay=self.positive_decay).where(
            is_good_B, gamma(log_ratio_B, power=self.negative_power, decay=self.negative_decay)
        )
        value_BT = weight_B[:, None] * rows.advantage_BT * logprob_BT
        stopped_BT = rows.mask_BT.new_zeros(rows.mask_BT.shape)
        return self.summed(rows, logprob_BT, value_BT, stopped_BT, algo.clipping.UNBOUNDED)
