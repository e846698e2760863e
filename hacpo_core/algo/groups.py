"""Statistics of the rewards of each problem, without unscored responses.

Shapes: P problem, A agent, G response of one agent to one problem.
"""

import torch
from torch import Tensor


def agent_mean(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """Mean reward of each agent's own scored responses to each problem.

        m[p, k] = sum_i R[p, k, i] / (number of scored responses of k)

    Args:
        reward_PAG: reward, finite where scored (any value elsewhere).
        is_scored_PAG: True where the response has a verdict.

    Returns:
        mean_PA in units of reward; 0 where an agent has no scored response.
    """
    num_PA = is_scored_PAG.sum(dim=2)
    total_PA = torch.where(is_scored_PAG, reward_PAG, 0.0).sum(dim=2)
    return total_PA / num_PA.clamp(min=1)


def agent_std(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """Standard deviation (ddof 1) of each agent's own scored responses to each problem.

    Returns:
        std_PA in units of reward; 0 where fewer than two responses are scored.
    Source: HACPO Eq. 5; ddof 1 as in verl and TRL.
    """
    deviation_PAG = reward_PAG - agent_mean(reward_PAG, is_scored_PAG)[:, :, None]
    square_PA = torch.where(is_scored_PAG, deviation_PAG**2, 0.0).sum(dim=2)
    return (square_PA / (is_scored_PAG.sum(dim=2) - 1).clamp(min=1)).sqrt()


def joint_std(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """Standard deviation (ddof 1) of all agents' scored rewards of each problem.

    Returns:
        std_P in units of reward; 0 where fewer than two responses are scored.
    Source: HACPO Eq. 6.
    """
    num_P = is_scored_PAG.shape[0]
    pooled = reward_PAG.reshape(num_P, 1, -1), is_scored_PAG.reshape(num_P, 1, -1)
    return agent_std(*pooled)[:, 0]


def is_uniform(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """True where all scored rewards of an agent's group are equal, so that its advantages are 0.

    Returns:
        is_uniform_PA; a group with fewer than two scored responses is uniform.
    """
    highest_PA = torch.where(is_scored_PAG, reward_PAG, -torch.inf).amax(dim=2)
    lowest_PA = torch.where(is_scored_PAG, reward_PAG, torch.inf).amin(dim=2)
    return highest_PA <= lowest_PA


def is_jointly_uniform(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """True where all agents' scored rewards of a problem are equal.

    Returns:
        is_uniform_P.
    """
    num_P = is_scored_PAG.shape[0]
    return is_uniform(reward_PAG.reshape(num_P, 1, -1), is_scored_PAG.reshape(num_P, 1, -1))[:, 0]
