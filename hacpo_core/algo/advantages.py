"""Baselines, advantages, and the advantage of each response for each learner.

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
CrossWeight = Literal["capability", "one"]
Scale = Literal["group", "own", "batch", "none"]
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Baseline:
    """Baseline `mean_PA` and divisor `std_PA` of each agent; `is_uniform_PA` is True where all rewards are equal.

    `num_guarded` counts the entries of `mean_PA` that the binary guard replaced.
    """

    mean_PA: Tensor
    std_PA: Tensor
    is_uniform_PA: Tensor
    num_guarded: int = 0


@dataclass(frozen=True, slots=True)
class JointAdvantages:
    """`advantage_LPAG[k, p, j, i]`: advantage of agent j's response i for learner k; `weight_LA[k, j]`: its weight.

    The weight is w[j, k] of Eq. 10 for j != k and 1 for own responses. Unscored responses have the advantage 0.
    """

    advantage_LPAG: Tensor
    weight_LA: Tensor
    baseline: Baseline


BaselineFunction = Callable[[Tensor, Tensor, Tensor], Baseline]


def own_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor, ratio_AA: Tensor) -> Baseline:
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


def pooled_baseline(reward_PAG: Tensor, is_scored_PAG: Tensor, ratio_AA: Tensor) -> Baseline:
    """Mean and standard deviation of all agents' scored rewards.

        mu[k] = sum_j sum_i R[j, i] / (number of scored responses)

    With equally many scored responses of each agent, it is the capability baseline with all ratios 1.

    Source: HACPO section 5, the Naive baseline.
    """
    shape, num_P = reward_PAG.shape[:2], reward_PAG.shape[0]
    pooled_P1 = own_baseline(reward_PAG.reshape(num_P, 1, -1), is_scored_PAG.reshape(num_P, 1, -1), ratio_AA)
    return Baseline(
        mean_PA=pooled_P1.mean_PA.expand(shape),
        std_PA=pooled_P1.std_PA.expand(shape),
        is_uniform_PA=pooled_P1.is_uniform_PA.expand(shape),
    )


def guard_binary(baseline: Baseline, reward_PAG: Tensor, is_scored_PAG: Tensor) -> Baseline:
    """Replace a baseline that no 0/1 reward can reach by the agent's own mean.

        mu[k] <- mean of R[k, :]    where mu[k] > 1 and k has a scored response

    Source: official code. DEVIATION (Eq. 7): see docs/decisions.md#binary-guard.
    """
    is_over_PA = (baseline.mean_PA > 1.0) & is_scored_PAG.any(dim=2)
    mean_PA = torch.where(is_over_PA, agent_mean(reward_PAG, is_scored_PAG), baseline.mean_PA)
    return replace(baseline, mean_PA=mean_PA, num_guarded=int(is_over_PA.sum()))


def standardise(
    reward_PAG: Tensor, is_scored_PAG: Tensor, baseline: Baseline, *, agent: int, divides: bool = True
) -> Tensor:
    """Advantage of every response relative to one agent's baseline.

        A[j, i] = (R[j, i] - mu[agent]) / (sigma[agent] + 1e-6);   0 if unscored or all rewards in the group are equal

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict.
        baseline: baselines of all agents.
        agent: index of the agent whose baseline is used.
        divides: False omits the division by sigma.

    Returns:
        advantage_PAG, dimensionless.
    Source: HACPO Eq. 6; 0 for groups of equal rewards as in the official code.
    """
    mean_P, std_P = baseline.mean_PA[:, agent], baseline.std_PA[:, agent]
    advantage_PAG = reward_PAG - mean_P[:, None, None]
    if divides:
        advantage_PAG = advantage_PAG / (std_P[:, None, None] + EPSILON)
    is_live_PAG = is_scored_PAG & ~baseline.is_uniform_PA[:, agent, None, None]
    return torch.where(is_live_PAG, advantage_PAG, 0.0)


def carried_advantages(
    reward_PAG: Tensor,
    is_scored_PAG: Tensor,
    baseline: Baseline,
    *,
    cross_baseline: CrossBaseline = "source",
    divides: bool = True,
) -> Tensor:
    """The advantage of every response for every learner, before the weight of Eq. 10.

        own response (j = k):   A = (R - mu[k]) / sigma[k]
        cross, source:          A = (R - mu[j]) / sigma[j]        Eq. 10
        cross, learner:         A = (R - mu[k]) / sigma[k]        Eq. 50 as printed, official code

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict.
        baseline: baselines of all agents.
        cross_baseline: the agent whose baseline is subtracted from a cross-agent response's reward.
        divides: False omits the division by sigma.

    Returns:
        advantage_LPAG: [k] holds the advantages of all responses for learner k.

    Raises:
        ValueError: unknown cross_baseline.
    Source: HACPO Eq. 10 against Eq. 50; see docs/decisions.md#cross-baseline.
    """
    num_A = reward_PAG.shape[1]
    learner_view_LPAG = torch.stack(
        [standardise(reward_PAG, is_scored_PAG, baseline, agent=k, divides=divides) for k in range(num_A)]
    )
    if cross_baseline == "learner":
        return learner_view_LPAG
    if cross_baseline == "source":
        source_view_PAG = torch.stack([learner_view_LPAG[j, :, j] for j in range(num_A)], dim=1)
        return source_view_PAG.expand_as(learner_view_LPAG)
    raise ValueError(f"unknown cross baseline: got {cross_baseline!r}, expected source or learner")


def joint_advantages(
    reward_PAG: Tensor,
    is_scored_PAG: Tensor,
    ratio_AA: Tensor,
    *,
    baseline: str = "capability",
    cross_baseline: CrossBaseline = "source",
    cross_weight: CrossWeight = "capability",
    binary_guard: bool = True,
    scale: Scale = "group",
    counts_PAG: Tensor | None = None,
    shaped_PAG: Tensor | None = None,
) -> JointAdvantages:
    """Advantages of all responses for all learners.

    Args:
        reward_PAG: reward, finite where scored; float64.
        is_scored_PAG: True where the response has a verdict.
        ratio_AA: capability ratio w[k, j] of the step.
        baseline: one of `BASELINES`.
        cross_baseline: baseline of cross-agent responses: the sampling agent's (Eq. 10) or the learner's (Eq. 50).
        cross_weight: "capability" multiplies cross-agent advantages by w[j, k] (Eq. 10), "one" does not.
        binary_guard: replace capability baselines above 1 by the agent's own mean if no reward exceeds 1.
        scale: divisor: the standard deviation of the rewards that the baseline is the mean of ("group"), that of the
            agent's own group ("own"; "group" where its rewards are all equal), that of all the agent's rewards in the
            step ("batch"), or 1 ("none"; advantages in units of reward).
        counts_PAG: True where a response counts in means and standard deviations; None: all scored responses.
        shaped_PAG: reward from which the baseline is subtracted; None: `reward_PAG`.

    Returns:
        advantages and weights; finite for any finite rewards.

    Source: HACPO Eq. 5-7, 10, 50.
    """
    clean_PAG = torch.where(is_scored_PAG, reward_PAG, 0.0)
    counts_PAG = is_scored_PAG if counts_PAG is None else is_scored_PAG & counts_PAG
    scale_P11 = _power_of_two_scale(clean_PAG)
    scaled_PAG = clean_PAG / scale_P11
    group_baseline = BASELINES[baseline](scaled_PAG, counts_PAG, ratio_AA)
    is_binary = bool((clean_PAG <= 1.0).all() & (scale_P11 == 1.0).all())
    if binary_guard and baseline == "capability" and is_binary:
        group_baseline = guard_binary(group_baseline, clean_PAG, counts_PAG)
    if scale == "own":
        is_own_uniform_PA = is_uniform(scaled_PAG, counts_PAG)
        own_std_PA = agent_std(scaled_PAG, counts_PAG)
        group_baseline = replace(group_baseline, std_PA=group_baseline.std_PA.where(is_own_uniform_PA, own_std_PA))
    if scale == "batch":
        group_baseline = replace(group_baseline, std_PA=batch_std(clean_PAG, counts_PAG) / scale_P11[:, :, 0])
    compared_PAG = scaled_PAG if shaped_PAG is None else shaped_PAG / scale_P11
    advantage_LPAG = carried_advantages(
        compared_PAG, is_scored_PAG, group_baseline, cross_baseline=cross_baseline, divides=scale != "none"
    )
    if scale == "none":
        advantage_LPAG = advantage_LPAG * scale_P11
    weight_LA = ratio_AA.T.clone() if cross_weight == "capability" else torch.ones_like(ratio_AA)
    scale_P1, largest = scale_P11[:, :, 0], torch.finfo(reward_PAG.dtype).max
    in_units_of_reward = replace(
        group_baseline,
        mean_PA=(group_baseline.mean_PA * scale_P1).clamp(-largest, largest),
        std_PA=(group_baseline.std_PA * scale_P1).clamp(max=largest),
    )
    return JointAdvantages(advantage_LPAG, weight_LA.fill_diagonal_(1.0), in_units_of_reward)


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
    Source: REINFORCE++ (2501.03262), as verl normalises over tokens.
    """
    weight_R = num_tokens_R * counts_R
    total = weight_R.sum()
    mean = (weight_R * reward_R).sum() / total.clamp(min=1)
    variance = (weight_R * (reward_R - mean) ** 2).sum() / (total - 1).clamp(min=1)
    return ((reward_R if compared_R is None else compared_R) - mean) * (variance + 1e-8).rsqrt()


BASELINES: dict[str, BaselineFunction] = {
    "own": own_baseline,
    "pooled": pooled_baseline,
    "capability": capability_baseline,
}


def _power_of_two_scale(reward_PAG: Tensor) -> Tensor:
    """scale_P11: 1 for ordinary rewards; an exact power of two to divide by if squares would overflow."""
    largest_P11 = reward_PAG.abs().amax(dim=(1, 2), keepdim=True)
    exponent_P11 = torch.frexp(largest_P11).exponent.clamp(max=1023)
    return torch.where(largest_P11 < 1e100, 1.0, torch.ldexp(torch.ones_like(largest_P11), exponent_P11))
