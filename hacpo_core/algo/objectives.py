"""The terms of the objectives (to be maximised) and how rows are averaged.

Shapes: B sequence, T token.
"""

import torch
from torch import Tensor

from hacpo_core.algo.clipping import Bounds, clipped_surrogate
from hacpo_core.algo.ratios import masked_mean

KL_LOG_RATIO_BOUND = 20.0
KL_BOUND = 10.0


def cross_surrogate(
    ratio_B: Tensor,
    advantage_B: Tensor,
    weight_B: Tensor,
    *,
    exponent: float,
    bounds: Bounds,
    is_pessimistic: bool = False,
) -> Tensor:
    """Surrogate of responses that another agent sampled.

        clip(s) sg(clip(s))^alpha w A

    Args:
        ratio_B: s, with gradient.
        advantage_B: A, dimensionless.
        weight_B: w[j, k], the sampling agent's capability over the learner's; 1 for the ablation without weights.
        exponent: alpha >= 0; sg stops the gradient.
        bounds: to which s is clipped.
        is_pessimistic: take the minimum with the unclipped product, as for own responses.

    Returns:
        surrogate_B.
    Source: HACPO Eq. 10, 12, 50; the power as in the official code.
    """
    surrogate_B = clipped_surrogate(ratio_B, advantage_B, bounds, is_pessimistic=is_pessimistic)
    # DEVIATION (Eq. 12, which has sg(s)^alpha): see docs/decisions.md#cross-power. The gradient is the same unless
    # `is_pessimistic`, since clip(s) has none where the two differ.
    return surrogate_B * ratio_B.detach().clamp(bounds.floor, bounds.ceiling) ** exponent * weight_B


def detached_ratio_surrogate(logprob_BT: Tensor, ratio_BT: Tensor, advantage_BT: Tensor, bounds: Bounds) -> Tensor:
    """REINFORCE weighted by a clipped ratio without gradient, so that every token keeps a gradient.

        sg(clip(r)) A log pi

    Args:
        logprob_BT: log pi in nats, with gradient.
        ratio_BT: r, per token.
        advantage_BT: A.
        bounds: to which r is clipped.

    Returns:
        surrogate_BT.
    Source: CISPO (MiniMax-M1, 2506.13585).
    """
    return ratio_BT.detach().clamp(bounds.floor, bounds.ceiling) * advantage_BT * logprob_BT


def gated_surrogate(ratio_BT: Tensor, advantage_BT: Tensor, *, positive: float, negative: float) -> Tensor:
    """Advantage times a smooth gate whose gradient decays on both sides of r = 1, instead of clipping.

        (4 / tau) sigmoid(tau (r - 1)) A,   tau = `positive` where A > 0, else `negative`

    Args:
        ratio_BT: r, per token, with gradient.
        advantage_BT: A.
        positive, negative: temperatures tau, > 0; a larger one makes the gate narrower.

    Returns:
        surrogate_BT; its derivative at r = 1 is A.
    Source: SAPO (2511.20347).
    """
    tau_of_positive, tau_of_negative = ratio_BT.new_tensor([positive, negative])
    tau_BT = torch.where(advantage_BT > 0, tau_of_positive, tau_of_negative)
    return (tau_BT * (ratio_BT - 1.0)).sigmoid() * 4.0 / tau_BT * advantage_BT


def geometric_ratio(
    log_ratio_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Geometric mean of a response's token ratios, each clipped where that lowers the objective.

        s = exp( mean over tokens of z ),   z = min(l, clip(l, -low, high)) where A > 0, max(...) where A < 0

    Args:
        log_ratio_BT: l = log pi - log pi_old in nats, with gradient.
        advantage_B: A.
        mask_BT: True on the tokens of the response.
        low, high: bounds of l in nats, >= 0.

    Returns:
        ratio_B, and is_stopped_BT: True where clipping sets a token's gradient to 0.
    Source: GMPO (2507.20673).
    """
    sign_B1 = advantage_B.sign()[:, None]
    bounded_BT = log_ratio_BT.clamp(-low, high)
    z_BT = sign_B1 * (sign_B1 * log_ratio_BT).minimum(sign_B1 * bounded_BT)
    is_stopped_BT = (sign_B1 * bounded_BT < sign_B1 * log_ratio_BT) & mask_BT
    return masked_mean(z_BT, mask_BT).exp(), is_stopped_BT


def kl_to_reference(logprob_BT: Tensor, reference_logprob_BT: Tensor) -> Tensor:
    """Low-variance estimate of KL(pi, reference) at each sampled token, never negative.

        min( exp(d) - d - 1, 10 ),   d = log pi_ref - log pi, clamped to +-20

    Beyond either bound, the gradient is 0.

    Returns:
        kl_BT in nats.
    Source: Schulman's k3 estimator with verl's bounds (`low_var_kl`); see docs/decisions.md#kl-to-the-reference.
    """
    difference_BT = (reference_logprob_BT - logprob_BT).clamp(-KL_LOG_RATIO_BOUND, KL_LOG_RATIO_BOUND)
    return (difference_BT.exp() - difference_BT - 1.0).clamp(max=KL_BOUND)


def sequence_weights(group_B: Tensor) -> Tensor:
    """Weights with which rows with one value each add up to the sum over groups of the mean over the group's rows.

        1/N,   N rows in the row's group

    Args:
        group_B: number of each row's group: its source (Eq. 53), or the same for all rows (one mean over all).

    Returns:
        weight_B, float64. The sum of weighted rows is the same for any split into micro-batches or ranks.
    Source: HACPO Eq. 53; GSPO.
    """
    return torch.bincount(group_B).double()[group_B].reciprocal()


def token_mean_weights(group_B: Tensor, num_tokens_B: Tensor) -> Tensor:
    """Weights of rows that are sums over tokens, for the mean over all tokens of a group: 1/(tokens of the group).

    Args:
        group_B: as for `sequence_weights`.
        num_tokens_B: response tokens of the row, >= 1.
    Source: DAPO; TRL's and verl's token mean.
    """
    return 1.0 / torch.bincount(group_B, num_tokens_B.double())[group_B]


def sequence_mean_weights(group_B: Tensor, num_tokens_B: Tensor) -> Tensor:
    """Weights of rows that are sums over tokens, for the mean of each row's mean: 1/(N n), n tokens in the row.

    Source: GRPO.
    """
    return 1.0 / (torch.bincount(group_B).double()[group_B] * num_tokens_B)


def constant_length_weights(group_B: Tensor, max_tokens: int) -> Tensor:
    """Weights of rows that are sums over tokens, whatever their length: 1/(N max_tokens).

    Source: Dr. GRPO.
    """
    return 1.0 / (torch.bincount(group_B).double()[group_B] * max_tokens)
