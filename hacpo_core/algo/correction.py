"""Correction for the difference between sampling engine and training engine.

They have the same weights but compute slightly different probabilities. Own rows are therefore sampled from a slightly
different distribution than the old policy of their importance ratios.

Shapes: B sequence, T token.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Correction = Literal["none", "truncate", "mask"]
CorrectionLevel = Literal["sequence", "token"]
LOG_BOUND = 20.0


def correction_weights(
    learner_logprob_BT: Tensor,
    sampler_logprob_BT: Tensor,
    mask_BT: Tensor,
    *,
    correction: Correction,
    level: CorrectionLevel,
    limit: float,
) -> Tensor:
    """Importance weight of each token: the learner's old policy over the sampler's policy.

        token:     w[t] = pi_learner,old(y_t) / pi_sampler(y_t)
        sequence:  w[t] = product of these over the sequence
        truncate:  min(w, C)        mask:  w where w <= C, else 0

    Args:
        learner_logprob_BT: nats, under the learner before its first update of the step.
        sampler_logprob_BT: nats, as reported by the sampler.
        mask_BT: True on the tokens of the response.
        correction: "truncate", "mask", or "none" for weights of 1.
        level: whether weights are per token or per sequence.
        limit: C, > 0.

    Returns:
        weight_BT, without gradient; 0 outside the mask. Log-ratios are clamped to +-20.
    Source: TRL's `vllm_importance_sampling_mode`; verl's `rollout_is` (truncate).
    """
    log_BT = (learner_logprob_BT - sampler_logprob_BT).detach() * mask_BT
    if level == "sequence":
        log_BT = log_BT.sum(dim=1, keepdim=True).expand_as(log_BT)
    weight_BT = log_BT.clamp(-LOG_BOUND, LOG_BOUND).exp()
    if correction == "none":
        weight_BT = torch.ones_like(weight_BT)
    elif correction == "truncate":
        weight_BT = weight_BT.clamp(max=limit)
    else:
        weight_BT = weight_BT.masked_fill(weight_BT > limit, 0.0)
    return weight_BT * mask_BT
