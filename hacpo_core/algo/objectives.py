"""The terms of the objectives (to be maximised) and how rows are averaged.

Shapes: B sequence, T token.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hacpo_core.algo.clipping import Bounds, clipped_surrogate

KL_LOG_RATIO_BOUND = 20.0
KL_BOUND = 10.0

SourceAggregation = Literal["sum_of_means", "mean_of_rows"]
TokenAggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
CrossPower = Literal["ratio", "clipped"]


def cross_surrogate(
    ratio_B: Tensor,
    advantage_B: Tensor,
    weight_B: Tensor,
    *,
    exponent: float,
    bounds: Bounds,
    power: CrossPower = "ratio",
    is_pessimistic: bool = False,
) -> Tensor:
    """Surrogate of responses that another agent sampled.

        clip(s) sg(s)^alpha w A           power "ratio"
        clip(s) sg(clip(s))^alpha w A     power "clipped"

    The gradient is the same for both unless `is_pessimistic`: where they differ, clip(s) has none.

    Args:
        ratio_B: s, with gradient.
        advantage_B: A, dimensionless.
        weight_B: w[j, k], capability of the sampling agent over the learner's; 1 for the ablation without it.
        exponent: alpha >= 0; sg stops the gradient.
        bounds: where s is clipped.
        power: what alpha is the power of.
        is_pessimistic: take the minimum with the unclipped product, as for own responses.

    Returns:
        surrogate_B.
    Source: HACPO Eq. 10, 12, 50; "clipped" as in the official code.
    """
    surrogate_B = clipped_surrogate(ratio_B, advantage_B, bounds, is_pessimistic=is_pessimistic)
    base_B = ratio_B.detach()
    if power == "clipped":
        base_B = base_B.clamp(bounds.floor, bounds.ceiling)
    return surrogate_B * base_B**exponent * weight_B


def kl_to_reference(logprob_BT: Tensor, reference_logprob_BT: Tensor) -> Tensor:
    """Low-variance estimate of KL(pi, reference) at each sampled token, never negative.

        min( exp(d) - d - 1, 10 ),   d = log pi_ref - log pi, clamped to +-20

    Beyond either bound there is no gradient.

    Returns:
        kl_BT in nats.
    Source: Schulman's k3 estimator with verl's bounds (`low_var_kl`); see docs/decisions.md#kl-to-the-reference.
    """
    difference_BT = (reference_logprob_BT - logprob_BT).clamp(-KL_LOG_RATIO_BOUND, KL_LOG_RATIO_BOUND)
    return (difference_BT.exp() - difference_BT - 1.0).clamp(max=KL_BOUND)


def row_weights(
    source_B: Tensor,
    num_tokens_B: Tensor,
    *,
    num_sources: int,
    is_token_level: bool = False,
    aggregation: SourceAggregation = "sum_of_means",
    token_aggregation: TokenAggregation = "token_mean",
    max_tokens: int = 1,
) -> Tensor:
    """Weight of each row of a whole mini-batch, so that any split into micro-batches or ranks adds up to the same.

        sum_of_means:  objective = sum over sources of the mean over that source's rows        Eq. 53
        mean_of_rows:  objective = mean over all rows

    A sequence-level row enters with weight 1/N. On the token level the weight multiplies the sum over the row's
    tokens: 1/(number of all tokens) for token_mean, 1/(N row tokens) for seq_mean_token_mean, 1/(N max_tokens) for
    seq_mean_token_sum_norm, N being the number of rows of the source (or of all sources).

    Args:
        source_B: index of the agent that sampled the row.
        num_tokens_B: response tokens of the row, >= 1.
        num_sources: number of agents.
        is_token_level: whether the objective's terms are per token.
        aggregation: over sources.
        token_aggregation: over tokens, token level only.
        max_tokens: the constant of seq_mean_token_sum_norm: the response limit.

    Returns:
        weight_B, float64.

    Raises:
        ValueError: an unknown aggregation.
    """
    if aggregation == "mean_of_rows":
        group_B, num_groups = torch.zeros_like(source_B), 1
    elif aggregation == "sum_of_means":
        group_B, num_groups = source_B, num_sources
    else:
        raise ValueError(f"unknown aggregation: got {aggregation!r}, expected sum_of_means or mean_of_rows")
    ones_B = torch.ones_like(num_tokens_B, dtype=torch.float64)
    rows_of_group = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, group_B, ones_B)
    num_rows_B = rows_of_group[group_B]
    if not is_token_level:
        return 1.0 / num_rows_B
    if token_aggregation == "token_mean":
        tokens = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, group_B, num_tokens_B.double())
        return 1.0 / tokens[group_B]
    if token_aggregation == "seq_mean_token_mean":
        return 1.0 / (num_rows_B * num_tokens_B)
    if token_aggregation == "seq_mean_token_sum_norm":
        return 1.0 / (num_rows_B * max_tokens)
    raise ValueError(f"unknown token aggregation: got {token_aggregation!r}")
