"""GRPO's objective: one ratio per token, clipped as in PPO.

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
class TokenClip(TokenLevel):
    """sum over tokens of min(r A, clip(r, 1 - low, 1 + high) A).

    Source: GRPO (2402.03300); DAPO's unequal bounds (2503.14476); dual-clip PPO (1912.09729).
    """

    token_low: float = setting(0.2, "token ratios are clipped to at least 1 - token_low", at_least=0, at_most=1)
    token_high: float = setting(0.28, "token ratios are clipped to at most 1 + token_high", at_least=0, at_most=1e3)
    dual_clip: float | None = setting(
        None,
        "c of dual-clip PPO: tokens with a negative advantage count at most c times the advantage, without gradient at "
        "larger ratios; verl's default is 3; null: no bound, as in TRL",
        above=1,
        at_most=1e6,
    )

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Surrogate of own rows."""
        clipping = algo.clipping
        bounds = clipping.own_bounds(low=self.token_low, high=self.token_high)
        ratio_BT = algo.ratios.token_ratio(logprob_BT, rows.old_logprob_BT)
        advantage_BT = rows.advantage_BT
        stopped_BT = clipping.is_stopped(ratio_BT, advantage_BT, bounds, is_pessimistic=True)
        if self.dual_clip is None:
            value_BT = clipping.clipped_surrogate(ratio_BT, advantage_BT, bounds, is_pessimistic=True)
        else:
            value_BT = clipping.dual_clipped_surrogate(ratio_BT, advantage_BT, bounds, limit=self.dual_clip)
            stopped_BT = stopped_BT | ((ratio_BT > self.dual_clip) & (advantage_BT < 0))
        return self.summed(rows, logprob_BT, value_BT, stopped_BT, bounds)
