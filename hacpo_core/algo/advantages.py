"""Baselines, advantages, and the advantage that a response carries for each learner.

Shapes: P problem, A agent, G response. Index k learns, j sampled; L is the axis of learners (as long as A).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hacpo_core.algo.groups import agent_mean, agent_std, is_jointly_uniform, is_uniform, joint_std

CrossBaseline = Literal["source", "learner"]
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Baseline:
    """What rewards are compared with: `mean_PA` and `std_PA` of each agent, and where the group ranks nothing.

    `num_guarded` counts the entries of `mean_PA` that the binary guard replaced.
    """

    mean_PA: Tensor
    std_PA: Tensor
    is_uniform_PA: Tensor
    num_guarded: int = 0


BaselineFunction = Callable[[Tensor, Tensor, Tensor], Baseline]


def own_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor, ratio_AA: Tensor) -> Baseline:
    """Mean and standard deviation of each agent's own group; other agents do not matter.

        mu[k] = 1/G sum_i R[k, i]

    Source: HACPO Eq. 5 (GRPO, GSPO, and HACPO - Adv).
    """
    return Baseline(
        mean_PA=agent_mean(reward_PAG, is_scored_PAG),
        std_PA=agent_std(reward_PAG, is_scored_PAG),
        is_uniform_PA=is_uniform(reward_PAG, is_scored_PAG),
    )


def capability_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor, ratio_AA: Tensor) -> Baseline:
    """Baseline of each agent over all agents' rewards, every reward rescaled to that agent's capability.

        mu[k] = 1/A sum_j w[k, j] * (mean of the scored R[j, :])
              = 1/(A G) sum_j sum_i w[k, j] R[j, i]        when every response is scored

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict; an agent with none in a problem is left out of the mean.
        ratio_AA: capability ratio w[k, j].

    Returns:
        the baseline, in units of reward, with the standard deviation of the joint group.
    Source: HACPO Eq. 6, 7.
    """
    has_any_PA = is_scored_PAG.any(dim=2)
    mean_PA = agent_mean(reward_PAG, is_scored_PAG)
    num_agents_P = has_any_PA.sum(dim=1).clamp(min=1)
    scaled_PA = torch.where(has_any_PA, mean_PA, 0.0) @ ratio_AA.T
    return Baseline(
        mean_PA=scaled_PA / num_agents_P[:, None],
        std_PA=joint_std(reward_PAG, is_scored_PAG)[:, None].expand_as(mean_PA),
        is_uniform_PA=is_jointly_uniform(reward_PAG, is_scored_PAG)[:, None].expand_as(mean_PA),
    )


def pooled_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor, ratio_AA: Tensor) -> Baseline:
    """Plain mean and standard deviation of all agents' rewards: the capability baseline with every ratio 1.

    Source: HACPO section 5, the Naive baseline.
    """
    return capability_baseline(reward_PAG, is_scored_PAG, torch.ones_like(ratio_AA))


def guard_binary(baseline: Baseline, reward_PAG: Tensor, is_scored_PAG: Tensor) -> Baseline:
    """Replace a baseline that no 0/1 reward can reach by the agent's own mean.

        mu[k] <- mean of R[k, :]    where mu[k] > 1

    Source: official code. DEVIATION (Eq. 7): see docs/decisions.md#binary-guard.
    """
    is_over_PA = baseline.mean_PA > 1.0
    mean_PA = torch.where(is_over_PA, agent_mean(reward_PAG, is_scored_PAG), baseline.mean_PA)
    return replace(baseline, mean_PA=mean_PA, num_guarded=int(is_over_PA.sum()))


def standardise(reward_PAG: Tensor, is_scored_PAG: Tensor, baseline: Baseline, *, agent: int) -> Tensor:
    """Advantage of every response against one agent's baseline.

        A[j, i] = (R[j, i] - mu[agent]) / (sigma[agent] + 1e-6);   0 where the group is uniform or unscored

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict.
        baseline: baselines of all agents.
        agent: index of the agent whose baseline is used.

    Returns:
        advantage_PAG, dimensionless.
    Source: HACPO Eq. 6; uniform groups give 0 as in the official code.
    """
    mean_P, std_P = baseline.mean_PA[:, agent], baseline.std_PA[:, agent]
    advantage_PAG = (reward_PAG - mean_P[:, None, None]) / (std_P[:, None, None] + EPSILON)
    is_live_PAG = is_scored_PAG & ~baseline.is_uniform_PA[:, agent, None, None]
    return torch.where(is_live_PAG, advantage_PAG, 0.0)


def carried_advantages(
    reward_PAG: Tensor, is_scored_PAG: Tensor, baseline: Baseline, *, cross_baseline: CrossBaseline = "source"
) -> Tensor:
    """The advantage that every response carries for every learner, before the weight of Eq. 10.

        own response (j = k):   A = (R - mu[k]) / sigma[k]
        cross, source:          A = (R - mu[j]) / sigma[j]        Eq. 10
        cross, learner:         A = (R - mu[k]) / sigma[k]        Eq. 50 as printed, official code

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict.
        baseline: baselines of all agents.
        cross_baseline: whose baseline a cross-agent response is compared with.

    Returns:
        advantage_LPAG: [k] is learner k's view of all responses.

    Raises:
        ValueError: unknown cross_baseline.
    Source: HACPO Eq. 10 against Eq. 50; see docs/decisions.md#cross-baseline.
    """
    num_A = reward_PAG.shape[1]
    learner_view_LPAG = torch.stack([standardise(reward_PAG, is_scored_PAG, baseline, agent=k) for k in range(num_A)])
    if cross_baseline == "learner":
        return learner_view_LPAG
    if cross_baseline == "source":
        source_view_PAG = torch.stack([learner_view_LPAG[j, :, j] for j in range(num_A)], dim=1)
        return source_view_PAG.expand_as(learner_view_LPAG)
    raise ValueError(f"unknown cross baseline: got {cross_baseline!r}, expected source or learner")
