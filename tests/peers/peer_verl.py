"""Advantages, losses and the KL estimate as verl computes them.

verl clips a third time where the advantage is negative (`clip_ratio_c`, 3 by default: "dual clip"); the project and
TRL do not, so the bound is set out of reach.

Shapes: P problem, A agent, G response, B sequence, T token.
"""

from typing import Any

import numpy as np
import torch
from cases import Array, LossCase
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_rloo_outcome_advantage,
    get_policy_loss_fn,
    kl_penalty,
)
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

LOSSES = ("vanilla", "gspo")
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
NO_DUAL_CLIP = 1e30


def grpo_advantages(reward_PAG: Array, *, is_pooled: bool) -> Array:
    """Verl's GRPO advantage, the group being one agent's responses to a problem or (pooled) all agents'."""
    num_P, num_A, num_G = reward_PAG.shape
    group_of_PA = np.repeat(np.arange(num_P), num_A) if is_pooled else np.arange(num_P * num_A)
    mask_BT = torch.ones(reward_PAG.size, 1, dtype=torch.int64)
    reward_BT = torch.from_numpy(reward_PAG.reshape(-1, 1).copy())
    advantage_BT, _ = compute_grpo_outcome_advantage(
        reward_BT, mask_BT, np.repeat(group_of_PA, num_G), norm_adv_by_std_in_grpo=True
    )
    return advantage_BT.numpy().reshape(reward_PAG.shape)


def other_advantages(reward_PAG: Array, num_tokens_PAG: Array) -> dict[str, Array]:
    """Verl's RLOO, REINFORCE++ and REINFORCE++-baseline, a group being one agent's responses to a problem.

    REINFORCE++ is asked agent by agent, each one's batch by itself; responses have lengths of their own.
    """
    num_P, num_A, num_G = reward_PAG.shape
    found = {name: np.empty_like(reward_PAG) for name in ("rloo", "reinforce_pp", "reinforce_pp_baseline")}
    for k in range(num_A):
        reward_B, num_tokens_B = reward_PAG[:, k].ravel(), num_tokens_PAG[:, k].ravel().astype(int)
        mask_BT = torch.from_numpy((np.arange(num_tokens_B.max()) < num_tokens_B[:, None]).astype(np.float64))
        reward_BT = torch.zeros_like(mask_BT)
        reward_BT[torch.arange(len(reward_B)), torch.from_numpy(num_tokens_B - 1)] = torch.from_numpy(reward_B)
        group_B = np.repeat(np.arange(num_P), num_G)
        advantage_BT = {
            "rloo": compute_rloo_outcome_advantage(reward_BT.clone(), mask_BT, group_B)[0],
            "reinforce_pp": compute_reinforce_plus_plus_outcome_advantage(
                reward_BT.clone(), mask_BT, config=AlgoConfig(gamma=1.0)
            )[0],
            "reinforce_pp_baseline": compute_reinforce_plus_plus_baseline_outcome_advantage(
                reward_BT.clone(), mask_BT, group_B
            )[0],
        }
        for name, value_BT in advantage_BT.items():
            found[name][:, k] = value_BT[:, 0].numpy().reshape(num_P, num_G)
    return found


def policy_losses(case: LossCase) -> list[dict[str, Any]]:
    """Loss, gradient and clipped share for every loss and aggregation, and the loss of both halves of the rows."""
    found = [_policy_loss(case, name, aggregation) for name in LOSSES for aggregation in AGGREGATIONS]
    return [*found, _policy_loss(case, "geo_mean", "seq-mean-token-mean")]


def _policy_loss(case: LossCase, name: str, aggregation: str) -> dict[str, Any]:
    every_row = slice(None)
    logprob_BT = torch.from_numpy(case.logprob_BT).requires_grad_()
    loss, metrics = _call(case, name, aggregation, logprob_BT, every_row)
    loss.backward()
    half = len(case.advantage_B) // 2
    halves = [
        _call(case, name, aggregation, logprob_BT.detach(), rows)[0].item()
        for rows in (slice(None, half), slice(half, None))
    ]
    return {
        "loss_name": name,
        "aggregation": aggregation,
        "loss": loss.item(),
        "gradient_BT": logprob_BT.grad.numpy(),
        "clipped_share": metrics.get("actor/pg_clipfrac", 0.0),
        "loss_of_halves": halves,
    }


def _call(
    case: LossCase, name: str, aggregation: str, logprob_BT: torch.Tensor, rows: slice
) -> tuple[torch.Tensor, dict[str, Any]]:
    """One micro-batch; the normalisers are the whole mini-batch's, the mask is int64 as in verl's own loop."""
    mask_BT = torch.from_numpy(case.mask_BT.astype(np.int64))
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=case.clip_low,
        clip_ratio_high=case.clip_high,
        clip_ratio_c=NO_DUAL_CLIP,
        global_batch_info={
            "dp_size": 1,
            "batch_num_tokens": int(mask_BT.sum()),
            "global_batch_size": len(case.advantage_B),
            "loss_scale_factor": case.max_tokens,
        },
    )
    return get_policy_loss_fn(name)(
        torch.from_numpy(case.old_logprob_BT)[rows],
        logprob_BT[rows],
        (torch.from_numpy(case.advantage_B)[:, None] * mask_BT)[rows],
        mask_BT[rows],
        loss_agg_mode=aggregation,
        config=config,
    )


def correction_weights(case: LossCase) -> dict[str, Array]:
    """Verl's truncated importance weights of tokens, by level."""
    log_ratio_BT = torch.from_numpy(case.old_logprob_BT - case.sampler_logprob_BT)
    mask_BT = torch.from_numpy(case.mask_BT.astype(np.int64))
    return {
        level: compute_rollout_correction_weights(
            log_ratio_BT, mask_BT, rollout_is=level, rollout_is_threshold=case.correction_limit
        )[0].numpy()
        for level in ("sequence", "token")
    }


def k3(case: LossCase) -> dict[str, Any]:
    """Verl's `low_var_kl` at every token, and the gradient of its sum."""
    logprob_BT = torch.from_numpy(case.logprob_BT).requires_grad_()
    kl_BT = kl_penalty(logprob_BT, torch.from_numpy(case.reference_logprob_BT), "low_var_kl")
    kl_BT.sum().backward()
    return {"kl_BT": kl_BT.detach().numpy(), "gradient_BT": logprob_BT.grad.numpy()}
