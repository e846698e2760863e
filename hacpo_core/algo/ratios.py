"""Importance ratios, per token and per sequence; the latter also between different tokenizers.

Shapes: B sequence, T token, K step of a window.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LOG_RATIO_BOUND = 10.0


def masked_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over each sequence's own tokens.

    Args:
        value_BT: finite where the mask is True, any value elsewhere.
        mask_BT: True on the tokens of the response.

    Returns:
        mean_B; 0 for a sequence without tokens.
    """
    return torch.where(mask_BT, value_BT, 0.0).sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)


def token_log_ratio(logprob_BT: Tensor, old_logprob_BT: Tensor) -> Tensor:
    """Log-ratio of the current to the old policy, per token, clamped to +-10.

    Returns:
        log_ratio_BT in nats.
    """
    return (logprob_BT - old_logprob_BT).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def token_ratio(logprob_BT: Tensor, old_logprob_BT: Tensor) -> Tensor:
    """Ratio of the current to the old policy, per token.

        r[t] = exp( log pi(y_t) - log pi_old(y_t) ),   the log-ratio clamped to +-10

    Returns:
        ratio_BT, dimensionless.
    Source: GRPO, PPO.
    """
    return token_log_ratio(logprob_BT, old_logprob_BT).exp()


def sequence_ratio(
    logprob_BT: Tensor, mask_BT: Tensor, old_mean_logprob_B: Tensor, *, is_floored: bool = True
) -> Tensor:
    """Length-normalised ratio of the learner's current policy to the policy that sampled the response.

        s = exp( mean over k's tokens of log pi_k  -  mean over j's tokens of log pi_j,old ),   clamped to exp(+-10)

    The two means may run over different numbers of tokens: the same text under two tokenizers.

    Args:
        logprob_BT: log-probabilities (nats) under the learner, on the learner's own tokens.
        mask_BT: True on the tokens of the response.
        old_mean_logprob_B: mean log-probability (nats per token) under the sampling agent's old policy, on its tokens.
        is_floored: False clamps log s above alone, to at most 10.

    Returns:
        ratio_B, dimensionless.
    Source: HACPO Eq. 11, 48, 51; GSPO Eq. 7.
    """
    log_ratio_B = masked_mean(logprob_BT, mask_BT) - old_mean_logprob_B
    return log_ratio_B.clamp(-LOG_RATIO_BOUND if is_floored else None, LOG_RATIO_BOUND).exp()


def log_center(mean_log_ratio_K: Sequence[float]) -> float:
    """Common factor of a pair of agents, as a log-ratio.

        c[k, j] = 1/K sum over the last K steps of the mean of log s[k, j] before the step's first update

    Args:
        mean_log_ratio_K: mean log-ratio of j's rows under k in each step, nats per token, at least one.

    Returns:
        c, nats per token.
    Source: ours; self-normalised importance sampling. See docs/decisions.md#self-normalised-cross-ratios.
    """
    return math.fsum(mean_log_ratio_K) / len(mean_log_ratio_K)


def self_normalised_ratio(
    logprob_BT: Tensor, mask_BT: Tensor, old_mean_logprob_B: Tensor, log_center_B: Tensor, *, is_floored: bool = True
) -> Tensor:
    """Sequence ratio relative to what is usual for the pair of agents.

        s~ = exp( log s - c ),   log s - c clamped to +-10

    With c = 0 it is `sequence_ratio`. If all of a pair's ratios are multiplied by one factor, c moves with them and s~
    stays.

    Args:
        logprob_BT, mask_BT, old_mean_logprob_B, is_floored: as for `sequence_ratio`.
        log_center_B: c of the row's pair of agents, nats per token; 0 for own rows.

    Returns:
        ratio_B, dimensionless.
    Source: ours; see docs/decisions.md#self-normalised-cross-ratios.
    """
    return sequence_ratio(logprob_BT, mask_BT, old_mean_logprob_B + log_center_B, is_floored=is_floored)
