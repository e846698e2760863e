"""HACPO's objective: GSPO's on own rows; stepwise clipping and a power of the ratio on other agents' rows.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import either, setting, unless
from hacpo_core.methods.base import why_no_partners
from hacpo_core.methods.objective import LossRows, Surrogate
from hacpo_core.methods.objectives.sequence_clip import SequenceClip

if TYPE_CHECKING:
    from torch import Tensor

    from hacpo_core.algo.clipping import Bounds


_NOT_STEPWISE = either(why_no_partners, unless("method.objective.cross_bounds", "stepwise"))


@dataclass(frozen=True)
class CrossClip(SequenceClip):
    """Own rows as in GSPO; on other agents' rows with c = clip(s, min(1, floor + m step), 1): c sg(c)^alpha w A.

    Source: HACPO Eq. 10-14, 47-53.
    """

    cross_exponent: float = setting(1.0, "alpha of Eq. 12", at_least=0, at_most=1e3, inert=why_no_partners)
    cross_bounds: str = setting(
        "stepwise",
        "bounds of cross-agent ratios",
        choices={"stepwise": "a floor that rises with each update (Eq. 14)", "own": "those of own rows", "none": ""},
        inert=why_no_partners,
    )
    cross_is_pessimistic: bool = setting(
        False, "use min(s A, clip(s) A) for cross-agent rows too", inert=why_no_partners
    )
    cross_floor: float = setting(
        0.8,
        "lower bound of cross-agent ratios: 1 - delta of Eq. 13 (Table 5 prints it in its delta column)",
        at_least=0,
        at_most=1,
        remedy="it is 1 - delta of the paper, so 0.8 for delta = 0.2",
        inert=_NOT_STEPWISE,
    )
    cross_step: float = setting(
        0.025, "delta_step of Eq. 14: rise of cross_floor per update", at_least=0, at_most=1, inert=_NOT_STEPWISE
    )

    def cross_limit(self, update: int) -> Bounds:
        """Bounds of cross-agent ratios after `update` updates of the step."""
        if self.cross_bounds == "stepwise":
            return algo.clipping.cross_bounds(floor=self.cross_floor, step=self.cross_step, update=update)
        if self.cross_bounds == "own":
            return algo.clipping.own_bounds(low=self.sequence_low, high=self.sequence_high)
        return algo.clipping.UNBOUNDED

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """GSPO's surrogate on own rows, HACPO's on foreign rows."""
        surrogate, bounds = super().surrogate(rows, logprob_BT, update=update), self.cross_limit(update)
        cross_B = algo.objectives.cross_surrogate(
            surrogate.ratio_B,
            rows.advantage_B,
            rows.weight_B,
            exponent=self.cross_exponent,
            bounds=bounds,
            is_pessimistic=self.cross_is_pessimistic,
        )
        stopped_B = algo.clipping.is_stopped(
            surrogate.ratio_B, rows.advantage_B, bounds, is_pessimistic=self.cross_is_pessimistic
        )
        is_foreign_B = rows.is_foreign_B
        return replace(
            surrogate,
            value_B=cross_B.where(is_foreign_B, surrogate.value_B),
            stopped_share_B=stopped_B.to(logprob_BT.dtype).where(is_foreign_B, surrogate.stopped_share_B),
            floor_B=surrogate.floor_B.masked_fill(is_foreign_B, bounds.floor),
            ceiling_B=surrogate.ceiling_B.masked_fill(is_foreign_B, bounds.ceiling),
        )
