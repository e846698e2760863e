"""Baselines, and the advantage of each response relative to one.

Shapes: P problem, A agent, G response of an agent to a problem, R response of one agent. Index k
learns, j sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hacpo_core.algo.groups import agent_mean, agent_std, is_jointly_uniform, is_uniform, joint_std

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Baseline:
    """Baseline `mean_PA` and divisor `std_PA` of each agent; `is_uniform_PA` is True where all rewards are equal.

    Without a divisor, advantages are differences of rewards. `num_guarded` counts the entries of `mean_PA` that the
    binary guard replaced.
    """

    mean_PA: Tensor
    std_PA: Tensor | None
    is_uniform_PA: Tensor
    num_guarded: int = 0

    def of_agent(self, agent: int) -> Baseline:
        """One agent's baseline in place of all agents' own."""

        def of_all(value_PA: Tensor) -> Tensor:
            return value_PA[:, agent, None].expand_as(value_PA)

        std_PA = None if self.std_PA is None else of_all(self.std_PA)
        return Baseline(of_all(self.mean_PA), std_PA, of_all(self.is_uniform_PA), self.num_guarded)


def own_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Baseline:
    """Mean and standard deviation of each agent's own group.

        mu[k] = 1/G sum_i R[k, i]

    Source: HACPO Eq. 5 (GRPO, GSPO, and HACPO - Adv).
    """
    return Baseline(
        mean_PA=agent_mean(reward_PAG, is_scored_PAG),
        std_PA=agent_std(reward_PAG, is_scored_PAG),
        is_uniform_PA=is_uniform(reward_PAG, is_scored_PAG),
    )


def capability_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor, ratio_AA: Tensor) -> Baseline:
    """Baseline of each agent: the mean of all agents' rewards, each rescaled to that agent's capability.

        mu[k] = 1/A sum_j w[k, j] * (mean of the scored R[j, :])
              = 1/(A G) sum_j sum_i w[k, j] R[j, i]        when every response is scored

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict; an agent with no verdict for a problem is left out.
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


def pooled_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Baseline:
    """Mean and standard deviation of all agents' scored rewards.

        mu[k] = sum_j sum_i R[j, i] / (number of scored responses)

    With equally many scored responses of each agent, it is the capability baseline with all ratios 1.

    Source: HACPO section 5, the Naive baseline.
    """
    shape, num_P = reward_PAG.shape[:2], reward_PAG.shape[0]
    pooled_P1 = own_baseline(reward_PAG.reshape(num_P, 1, -1), is_scored_PAG.reshape(num_P, 1, -1))
    return Baseline(
        mean_PA=pooled_P1.mean_PA.expand(shape),
        std_PA=joint_std(reward_PAG, is_scored_PAG)[:, None].expand(shape),
        is_uniform_PA=pooled_P1.is_uniform_PA.expand(shape),
    )


def guard_binary(baseline: Baseline, reward_PAG: Tensor, is_scored_PAG: Tensor) -> Baseline:
    """Replace a baseline that no reward in [0, 1] can reach by the agent's own mean.

        mu[k] <- mean of R[k, :]    where mu[k] > 1 and k has a scored response

    Source: official code. DEVIATION (Eq. 7): see docs/decisions.md#binary-guard.
    """
    is_over_PA = (baseline.mean_PA > 1.0) & is_scored_PAG.any(dim=2)
    mean_PA = torch.where(is_over_PA, agent_mean(reward_PAG, is_scored_PAG), baseline.mean_PA)
    return replace(baseline, mean_PA=mean_PA, num_guarded=int(is_over_PA.sum()))


def standardise(reward_PAG: Tensor, is_scored_PAG: Tensor, baseline: Baseline) -> Tensor:
    """Advantage of every response relative to the baseline of the agent that sampled it.

        A[j, i] = (R[j, i] - mu[j]) / (sigma[j] + 1e-6);   0 if unscored or all rewards in the group are equal

    With `baseline.of_agent(k)`, it is relative to the baseline of learner k.

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict.
        baseline: of all agents.

    Returns:
        advantage_PAG, dimensionless; in units of reward if the baseline has no divisor.
    Source: HACPO Eq. 6, 10 (baseline of the source) or Eq. 50 (of the learner); 0 for groups of equal rewards as in the
    official code. See docs/decisions.md#cross-baseline.
    """
    advantage_PAG = reward_PAG - baseline.mean_PA[:, :, None]
    if baseline.std_PA is not None:
        advantage_PAG = advantage_PAG / (baseline.std_PA[:, :, None] + EPSILON)
    has_advantage_PAG = is_scored_PAG & ~baseline.is_uniform_PA[:, :, None]
    return torch.where(has_advantage_PAG, advantage_PAG, 0.0)


def with_own_std(baseline: Baseline, reward_PAG: Tensor, is_scored_PAG: Tensor) -> Baseline:
    """Divide by the standard deviation of the agent's own group, except where its rewards are all equal.

    Source: ours, for peers' rows; see docs/decisions.md#peers.
    """
    assert baseline.std_PA is not None
    is_own_uniform_PA = is_uniform(reward_PAG, is_scored_PAG)
    own_std_PA = agent_std(reward_PAG, is_scored_PAG)
    return replace(baseline, std_PA=baseline.std_PA.where(is_own_uniform_PA, own_std_PA))


def batch_std(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """Standard deviation (ddof 1) of all rewards of each agent in the step; 0 where it has fewer than two.

    Returns:
        std_PA, the same for all problems.
    Source: TRL's `scale_rewards="batch"`.
    """
    of_agent = [reward_PAG[:, k][is_scored_PAG[:, k]] for k in range(reward_PAG.shape[1])]
    std_A = torch.stack([r.std() if len(r) > 1 else r.new_zeros(()) for r in of_agent])
    return std_A.expand(len(reward_PAG), -1)


def leave_one_out(reward_PAG: Tensor, is_scored_PAG: Tensor, counts_PAG: Tensor) -> Tensor:
    """Each reward minus the mean reward of the agent's other responses to the problem.

        A[i] = R[i] - 1/(G - 1) sum over j != i of R[j]  =  G/(G - 1) (R[i] - mean)

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict.
        counts_PAG: True where it counts in means: G responses. The baseline of the others is the mean of these.

    Returns:
        advantage_PAG, in units of reward; 0 for the only response to a problem.
    Source: RLOO (2402.14740).
    """
    counts_PAG = counts_PAG & is_scored_PAG
    num_PA1 = counts_PAG.sum(dim=2, keepdim=True)
    num_others_PAG = num_PA1 - counts_PAG.long()
    mean_PA1 = agent_mean(reward_PAG, counts_PAG)[:, :, None]
    advantage_PAG = (reward_PAG - mean_PA1) * num_PA1 / num_others_PAG.clamp(min=1)
    return torch.where(is_scored_PAG & (num_others_PAG > 0), advantage_PAG, 0.0)


def whitened(reward_R: Tensor, num_tokens_R: Tensor, counts_R: Tensor, *, compared_R: Tensor | None = None) -> Tensor:
    """Rewards normalised by mean and variance over a batch's tokens: each response is weighted by its length.

        A = (R - mu) / sqrt(v + 1e-8),   mu = sum n R / N,   v = sum n (R - mu)^2 / (N - 1),   N = sum n

    Args:
        reward_R: finite.
        num_tokens_R: n, response tokens.
        counts_R: True where the response counts in mu and v.
        compared_R: values to normalise with mu and v; None: `reward_R`.

    Returns:
        advantage_R, dimensionless.
    Source: REINFORCE++ (2501.03262), as verl normalises over tokens, by N - 1. Others divide by N: A is larger by the
        factor sqrt(N / (N - 1)), 1.0005 at 1,000 tokens; responses of 1 and 3 tokens with rewards 1 and 0 have +1.732
        and -.577 instead of +1.5 and -.5.
    """
    weight_R = num_tokens_R * counts_R
    total = weight_R.sum()
    mean = (weight_R * reward_R).sum() / total.clamp(min=1)
    variance = (weight_R * (reward_R - mean) ** 2).sum() / (total - 1).clamp(min=1)
    return ((reward_R if compared_R is None else compared_R) - mean) * (variance + 1e-8).rsqrt()
