"""Rewards calibrated by the other agents' rewards for the same problem (ILR).

Shapes: P problem, A agent, G response of one agent to one problem. Agent k is calibrated by the other agents l.
"""

import torch
from torch import Tensor

from hacpo_core.algo.groups import agent_mean


def calibrated_rewards(reward_PAG: Tensor, counts_PAG: Tensor) -> Tensor:
    """Each reward plus its bounded, scaled distance from every other agent's mean reward for the same problem.

        R'[k, i] = R[k, i] + sum over l != k of clip((R[k, i] - mean R[l]) / (max R[l] - min R[l]), -b, b)
        b = 1 / (A - 1)

    Agents l without rewards, or whose rewards are all equal, add 0.

    Args:
        reward_PAG: raw reward, finite.
        counts_PAG: True where the response counts in mean, max and min.

    Returns:
        calibrated_PAG, in units of reward; the raw rewards if there is only one agent.
    Source: ILR (2509.26306), perception calibration.
    """
    num_A = reward_PAG.shape[1]
    mean_PA = agent_mean(reward_PAG, counts_PAG)
    highest_PA = torch.where(counts_PAG, reward_PAG, -torch.inf).amax(dim=2)
    lowest_PA = torch.where(counts_PAG, reward_PAG, torch.inf).amin(dim=2)
    calibrated_PAG = reward_PAG.clone()
    for peer in range(num_A):
        has_spread_P = highest_PA[:, peer] > lowest_PA[:, peer]
        spread_P = torch.where(has_spread_P, highest_PA[:, peer] - lowest_PA[:, peer], 1.0)
        distance_PAG = (reward_PAG - mean_PA[:, peer, None, None]) / spread_P[:, None, None]
        bound = 1.0 / max(1, num_A - 1)
        adds_PA = has_spread_P[:, None] & (torch.arange(num_A) != peer)
        calibrated_PAG += torch.where(adds_PA[:, :, None], distance_PAG.clamp(-bound, bound), 0.0)
    return calibrated_PAG
