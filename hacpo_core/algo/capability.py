"""Current capability of each agent, and the ratios between agents.

Shapes: P problem, A agent, G response, K step of the window. Index k learns, j sampled.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FLOOR = 1e-8
"""smallest capability, so that one of 0 causes no division by zero"""
MIN_RATIO, MAX_RATIO = 0.1, 10.0
"""bounds of the ratio of two capabilities, of the official code"""


def mean_reward(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """Capability of each agent in one step's batch: the mean reward of its scored responses.

        P[k] = 1/(P G) sum_p sum_i R[p, k, i]

    Args:
        reward_PAG: reward, finite where scored.
        is_scored_PAG: True where the response has a verdict and counts.

    Returns:
        capability_A, in units of reward.

    Raises:
        ValueError: an agent has no scored response at all.
    Source: HACPO Eq. 9.
    """
    num_A = is_scored_PAG.sum(dim=(0, 2))
    if bool((num_A == 0).any()):
        raise ValueError(f"an agent has no scored response in this step: got {num_A.tolist()} scored responses")
    return (torch.where(is_scored_PAG, reward_PAG, 0.0) / num_A[:, None]).sum(dim=(0, 2))


def positive_rate(reward_PAG: Tensor, is_scored_PAG: Tensor) -> Tensor:
    """Share of each agent's scored responses whose reward is above 0; arguments and errors as for `mean_reward`.

    Returns:
        capability_A, in [0, 1].
    Source: official code.
    """
    return mean_reward((reward_PAG > 0).to(reward_PAG.dtype), is_scored_PAG)


def windowed_capability(capability_KA: Tensor | NDArray[np.float64]) -> Tensor:
    """Mean capability over the window, the current step included.

        P_hat[k] = 1/K sum over the last K steps of P[k]

    Args:
        capability_KA: one row per step, at least one (fewer than K at the start of a run).

    Returns:
        capability_A.

    Raises:
        ValueError: the window is empty.
    Source: HACPO Eq. 9.
    """
    if capability_KA.shape[0] == 0:
        raise ValueError("the capability window is empty: got 0 rows, expected at least the current step")
    capability_KA = torch.as_tensor(capability_KA)
    return (capability_KA / capability_KA.shape[0]).sum(dim=0)


def capability_ratios(capability_A: Tensor) -> Tensor:
    """Ratio of the capabilities of each pair of agents, bounded.

        w[k, j] = clip( max(P[k], FLOOR) / max(P[j], FLOOR), MIN_RATIO, MAX_RATIO )

    Args:
        capability_A: windowed capability.

    Returns:
        ratio_AA; 1 on the diagonal.
    Source: HACPO Eq. 8; bounds of the official code.
    """
    floored_A = capability_A.clamp(min=FLOOR)
    return (floored_A[:, None] / floored_A[None, :]).clamp(MIN_RATIO, MAX_RATIO)
