"""LUFFY's objective: GRPO's on own rows, policy shaping on peers' rows.

Shapes: B row of a micro-batch, T token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import why_no_partners
from hacpo_core.methods.objective import LossRows, Surrogate
from hacpo_core.methods.objectives.token_clip import TokenClip

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PeerShaping(TokenClip):
    """Own rows as with `token_clip`; peers' rows: sum over tokens of p / (p + gamma) A, p the learner's probability.

    Peers' rows use no importance ratio and no clipping. Unlikely tokens have the largest gradient.

    Source: LUFFY (2504.14945), policy shaping.
    """

    shaping: float = setting(0.1, "gamma in p / (p + gamma)", above=0, at_most=1e3, inert=why_no_partners)

    needs_shared_rollouts = True
    needs_token_ratios = False

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """GRPO's surrogate on own rows, policy shaping on foreign rows."""
        own_surrogate = super().surrogate(rows, logprob_BT, update=update)
        probability_BT = logprob_BT.exp()
        shaped_BT = probability_BT / (probability_BT + self.shaping) * rows.weighted_advantage_B[:, None]
        is_foreign_B = rows.is_foreign_B
        return replace(
            own_surrogate,
            value_B=(shaped_BT * rows.mask_BT).sum(dim=1).where(is_foreign_B, own_surrogate.value_B),
            stopped_share_B=own_surrogate.stopped_share_B.masked_fill(is_foreign_B, 0.0),
            floor_B=own_surrogate.floor_B.masked_fill(is_foreign_B, 0.0),
            ceiling_B=own_surrogate.ceiling_B.masked_fill(is_foreign_B, math.inf),
            below_share_B=own_surrogate.below_B.masked_fill(is_foreign_B, 0.0),
            above_share_B=own_surrogate.above_B.masked_fill(is_foreign_B, 0.0),
        )
