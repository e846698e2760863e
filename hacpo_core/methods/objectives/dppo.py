"""DPPO's objective: tokens whose probability has moved too far train no further, instead of a clip of the ratio.

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
class Dppo(TokenLevel):
    """sum over tokens of trusted sg(min(r, ratio_ceiling)) A log pi, trusted 1 or 0.

    A token is trusted unless its divergence from the old policy, between taking the token and taking another one, is
    above the bound and the gradient would increase it.

    Source: DPPO (2602.04879), as in verl (dppo_tv, dppo_kl).
    """

    divergence: str = setting(
        "tv",
        "divergence from the old policy",
        choices={"tv": "total variation: |p - p_old|", "kl": "KL(p_old, p) of taking the token or another one"},
    )
    divergence_low: float = setting(
        0.2, "largest divergence of tokens that become less likely (A < 0)", at_least=0, at_most=100
    )
    divergence_high: float = setting(
        0.2, "largest divergence of tokens that become likelier (A > 0)", at_least=0, at_most=100
    )
    ratio_ceiling: float = setting(20.0, "upper bound of a token's importance ratio", at_least=1, at_most=1e6)

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Surrogate of own rows."""
        equations, advantage_BT = algo.objectives, rows.advantage_BT
        divergence = equations.total_variation if self.divergence == "tv" else equations.binary_kl
        is_trusted_BT = equations.is_trusted(
            logprob_BT.detach() - rows.old_logprob_BT,
            divergence(logprob_BT.detach(), rows.old_logprob_BT),
            advantage_BT,
            low=self.divergence_low,
            high=self.divergence_high,
        )
        bounds = algo.clipping.Bounds(0.0, self.ratio_ceiling)
        ratio_BT = algo.ratios.token_ratio(logprob_BT, rows.old_logprob_BT)
        value_BT = equations.detached_ratio_surrogate(logprob_BT, ratio_BT, advantage_BT, bounds) * is_trusted_BT
        return self.summed(rows, logprob_BT, value_BT, ~is_trusted_BT, bounds)
