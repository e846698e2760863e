"""GRPO's objective: a ratio per token, clipped as PPO does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import LossRows, Objective, Surrogate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TokenClip(Objective):
    """sum over tokens of min(r A, clip(r, 1 - low, 1 + high) A).

    Source: GRPO; DAPO's unequal bounds.
    """

    token_low: float = setting(0.2, "ratios of tokens are kept above 1 - token_low", at_least=0, at_most=1)
    token_high: float = setting(0.28, "ratios of tokens are kept below 1 + token_high", at_least=0, at_most=1e3)
    token_aggregation: str = setting(
        "token_mean",
        "over tokens: mean of all, of each row's mean, or of each row's sum over the response limit",
        choices=("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"),
    )

    @property
    def is_token_level(self) -> bool:
        """True."""
        return True

    def row_weights(self, source_B: Tensor, num_tokens_B: Tensor, *, num_sources: int, max_tokens: int) -> Tensor:
        """What the sum over a row's tokens is multiplied with."""
        return algo.objectives.row_weights(
            source_B,
            num_tokens_B,
            num_sources=num_sources,
            is_token_level=True,
            aggregation=self.aggregation,  # type: ignore[arg-type]
            token_aggregation=self.token_aggregation,  # type: ignore[arg-type]
            max_tokens=max_tokens,
        )

    def surrogate(self, rows: LossRows, logprob_BT: Tensor, *, update: int) -> Surrogate:
        """Own rows alone."""
        clipping, ratios = algo.clipping, algo.ratios
        bounds = clipping.own_bounds(low=self.token_low, high=self.token_high)
        ratio_BT = ratios.token_ratio(logprob_BT, rows.old_logprob_BT)
        advantage_B1 = rows.advantage_B[:, None]
        value_BT = clipping.clipped_surrogate(ratio_BT, advantage_B1, bounds, is_pessimistic=True)
        stopped_BT = clipping.is_stopped(ratio_BT, advantage_B1, bounds, is_pessimistic=True)
        ratio_B = ratios.sequence_ratio(logprob_BT, rows.mask_BT, rows.old_mean_logprob_B)
        return Surrogate(
            value_B=(value_BT * rows.mask_BT).sum(dim=1),
            ratio_B=ratio_B,
            stopped_share_B=ratios.masked_mean(stopped_BT.to(logprob_BT.dtype), rows.mask_BT),
            floor_B=ratio_B.new_full(ratio_B.shape, bounds.floor),
            ceiling_B=ratio_B.new_full(ratio_B.shape, bounds.ceiling),
        )
