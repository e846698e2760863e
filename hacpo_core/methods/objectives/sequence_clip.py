"""GSPO's objective: one clipped ratio per response, for own and other agents' rows alike.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.objective import LossRows, Objective, Surrogate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SequenceClip(Objective):
    """min(s w A, clip(s, 1 - low, 1 + high) w A).

    Source: GSPO; HACPO Eq. 47-49, and section 5 (the Naive baseline, for others' rows too).
    """

    sequence_low: float = setting(
        3e-4, "sequence ratios are clipped to at least 1 - sequence_low", at_least=0, at_most=1
    )
    sequence_high: float = setting(
        4e-4, "sequence ratios are clipped to at most 1 + sequence_high", at_least=0, at_most=1e3
    )

    log_ratio_clamp: str = setting(
        "both", "clamp of log s", choices={"both": "to [-10, 10]", "above": "to at most 10 (original code)"}
    )

    reads_partners = False

    def ratio(self, rows: LossRows, logprob_BT: Tensor) -> Tensor:
        """Ratio of each row to which the bounds apply."""
        is_floored = self.log_ratio_clamp == "both"
        return algo.ratios.sequence_ratio(logprob_BT, rows.mask_BT, rows.old_mean_logprob_B, is_floored=is_floored)

    @property
    def own_clip_width(self) -> float:
        """The smaller of both clips."""
        return min(self.sequence_low, self.sequence_high)

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """The same surrogate for the rows of all sources."""
        clipping = algo.clipping
        bounds = clipping.own_bounds(low=self.sequence_low, high=self.sequence_high)
        ratio_B = self.ratio(rows, logprob_BT)
        advantage_B = rows.weighted_advantage_B
        stopped_B = clipping.is_stopped(ratio_B, advantage_B, bounds, is_pessimistic=True)
        return Surrogate(
            value_B=clipping.clipped_surrogate(ratio_B, advantage_B, bounds, is_pessimistic=True),
            ratio_B=ratio_B,
            stopped_share_B=stopped_B.to(logprob_BT.dtype),
            floor_B=ratio_B.new_full(ratio_B.shape, bounds.floor),
            ceiling_B=ratio_B.new_full(ratio_B.shape, bounds.ceiling),
        )
