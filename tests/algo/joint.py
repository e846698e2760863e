"""What the shipped estimators' equations give for rewards of one's choice.

Shapes: P problem, A agent, G response, L learner (as long as A).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hacpo_core.algo.advantages import Baseline
from hacpo_core.algo.rewards import GroupedRewards
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.groups import GroupEstimator


@dataclass(frozen=True)
class Joint:
    """`advantage_LPAG[k, p, j, i]`: of agent j's response i for learner k; `weight_LA[k, j]`: its weight."""

    advantage_LPAG: Tensor
    weight_LA: Tensor
    baseline: Baseline


def joint(
    reward_PAG: Tensor,
    is_scored_PAG: Tensor,
    ratio_AA: Tensor | None = None,
    *,
    counts_PAG: Tensor | None = None,
    shaped_PAG: Tensor | None = None,
    **fields: Any,
) -> Joint:
    """Advantages and weights; the fields are those of `capability` with ratios, else those of `group`."""
    clean_PAG = torch.where(is_scored_PAG, reward_PAG, 0.0)
    rewards = GroupedRewards(
        reward_PAG=clean_PAG,
        shaped_PAG=clean_PAG if shaped_PAG is None else shaped_PAG,
        is_scored_PAG=is_scored_PAG,
        counts_PAG=is_scored_PAG if counts_PAG is None else is_scored_PAG & counts_PAG,
        place_R=(),
    )
    num_agents = reward_PAG.shape[1]
    if ratio_AA is None:
        baseline, advantage_LPAG = GroupEstimator(**fields).advantages(rewards)
        weight_LA = torch.ones(num_agents, num_agents, dtype=torch.float64)
    else:
        estimator = CapabilityEstimator(**fields)
        baseline, advantage_LPAG = estimator.advantages(rewards, ratio_AA)
        weight_LA = estimator.weights(ratio_AA)
    return Joint(torch.stack(list(advantage_LPAG)), weight_LA, baseline)
