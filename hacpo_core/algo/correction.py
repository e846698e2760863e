"""Correction for the difference between sampling engine and training engine.

They have the same weights but compute slightly different probabilities. Own rows are therefore sampled from a slightly
different distribution than the old policy of their importance ratios.

Shapes: B sequence, T token.
"""

from torch import Tensor

LOG_BOUND = 20.0


def token_corrections(learner_logprob_BT: Tensor, sampler_logprob_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Importance weight of each token: the learner's old policy over the sampler's policy.

        w[t] = pi_learner,old(y_t) / pi_sampler(y_t)

    Args:
        learner_logprob_BT: nats, under the learner before its first update of the step.
        sampler_logprob_BT: nats, as reported by the sampler.
        mask_BT: True on the tokens of the response.

    Returns:
        weight_BT, without gradient; 1 outside the mask. Log-ratios are clamped to +-20.
    Source: TRL's `vllm_importance_sampling_mode`; verl's `rollout_is`.
    """
    return _log_ratio(learner_logprob_BT, sampler_logprob_BT, mask_BT).clamp(-LOG_BOUND, LOG_BOUND).exp()


def sequence_corrections(learner_logprob_BT: Tensor, sampler_logprob_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The product of `token_corrections` over each response, repeated for each of its tokens.

    Returns:
        weight_BT, without gradient. The log of the product is clamped to +-20.
    Source: as for `token_corrections`.
    """
    log_BT = _log_ratio(learner_logprob_BT, sampler_logprob_BT, mask_BT)
    return log_BT.sum(dim=1, keepdim=True).expand_as(log_BT).clamp(-LOG_BOUND, LOG_BOUND).exp()


def truncated(weight_BT: Tensor, limit: float) -> Tensor:
    """Weights of at most C = `limit`: min(w, C). Source: verl's `rollout_is`."""
    return weight_BT.clamp(max=limit)


def masked(weight_BT: Tensor, limit: float) -> Tensor:
    """Weights of at most C = `limit`: w where w <= C, else 0. Source: TRL's mode `mask`."""
    return weight_BT.masked_fill(weight_BT > limit, 0.0)


def _log_ratio(learner_logprob_BT: Tensor, sampler_logprob_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (learner_logprob_BT - sampler_logprob_BT).detach() * mask_BT
