"""Common base of objectives with a term per token: token averaging, own rows only.

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

    from hacpo_core.algo.clipping import Bounds

AGGREGATIONS = {
    "token_mean": "mean of all tokens",
    "seq_mean_token_mean": "mean of each response's mean",
    "seq_mean_token_sum_norm": "mean of each response's sum divided by rollout.max_response_tokens",
}


@dataclass(frozen=True)
class TokenLevel(Objective):
    """Sum over tokens of a term that the subclass defines."""

    token_aggregation: str = setting("token_mean", "how tokens are averaged", choices=AGGREGATIONS)

    reads_partners = False
    is_token_level = True
    weighs_tokens = True

    def row_weights(self, source_B: Tensor, num_tokens_B: Tensor, *, max_tokens: int) -> Tensor:
        """Factor of the sum over each row's tokens."""
        group_B, equations = self.groups(source_B), algo.objectives
        if self.token_aggregation == "token_mean":
            return equations.token_mean_weights(group_B, num_tokens_B)
        if self.token_aggregation == "seq_mean_token_mean":
            return equations.sequence_mean_weights(group_B, num_tokens_B)
        return equations.constant_length_weights(group_B, max_tokens)

    def summed(
        self, rows: LossRows, logprob_BT: Tensor, value_BT: Tensor, stopped_BT: Tensor, bounds: Bounds
    ) -> Surrogate:
        """The surrogate of rows from the values of their tokens.

        Args:
            rows: the micro-batch.
            logprob_BT: nats, under the current policy.
            value_BT: to be maximised, with gradient.
            stopped_BT: 1 where clipping set the token's gradient to 0, else 0.
            bounds: of the token ratios.
        """
        ratios = algo.ratios
        if rows.correction_BT is not None and self.correction_level == "token":
            value_BT = value_BT * rows.correction_BT
        ratio_B = ratios.sequence_ratio(logprob_BT, rows.mask_BT, rows.old_mean_logprob_B)
        ratio_BT = ratios.token_ratio(logprob_BT.detach(), rows.old_logprob_BT)

        def share(is_counted_BT: Tensor) -> Tensor:
            return ratios.masked_mean(is_counted_BT.to(logprob_BT.dtype), rows.mask_BT)

        return Surrogate(
            value_B=(value_BT * rows.mask_BT).sum(dim=1),
            ratio_B=ratio_B,
            stopped_share_B=share(stopped_BT),
            floor_B=ratio_B.new_full(ratio_B.shape, bounds.floor),
            ceiling_B=ratio_B.new_full(ratio_B.shape, bounds.ceiling),
            below_share_B=share(ratio_BT < bounds.floor),
            above_share_B=share(ratio_BT > bounds.ceiling),
        )
