"""A step's rewards as arrays problem x agent x response, from which means and standard deviations are computed.

Agents may have different numbers of responses to a problem. Entries without a response are unscored.

Shapes: P problem, A agent, G response, R response of one agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AgentRewards:
    """One agent's responses: index of the problem, raw and shaped reward (nan: unscored), and whether the response
    counts in means and standard deviations.
    """

    problem_R: NDArray[np.int64]
    reward_R: NDArray[np.float64]
    shaped_R: NDArray[np.float64]
    counts_R: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupedRewards:
    """Rewards of all agents: float64, 0 where unscored. `place_R[k]` holds, for each response of agent k, its problem
    and its index among k's responses to that problem.
    """

    reward_PAG: Tensor
    shaped_PAG: Tensor
    is_scored_PAG: Tensor
    counts_PAG: Tensor
    place_R: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]

    def column(self, value_PAG: Tensor, agent: int) -> NDArray[Any]:
        """One agent's values, response by response."""
        problem_R, place_R = self.place_R[agent]
        value_R: NDArray[Any] = value_PAG[problem_R, agent, place_R].numpy()
        return value_R


def group_rewards(agents: Sequence[AgentRewards], num_problems: int) -> GroupedRewards:
    """Arrange the responses of all agents; an agent's responses to a problem keep their order."""
    places = [_places(agent.problem_R, num_problems) for agent in agents]
    num_G = max((int(place_R.max(initial=0)) + 1 for place_R in places), default=1)
    shape = (num_problems, len(agents), num_G)
    reward_PAG, shaped_PAG = np.zeros(shape), np.zeros(shape)
    is_scored_PAG, counts_PAG = np.zeros(shape, bool), np.zeros(shape, bool)
    for k, (agent, place_R) in enumerate(zip(agents, places, strict=True)):
        is_scored_R = ~np.isnan(agent.reward_R)
        reward_PAG[agent.problem_R, k, place_R] = np.where(is_scored_R, agent.reward_R, 0.0)
        shaped_PAG[agent.problem_R, k, place_R] = np.where(is_scored_R, agent.shaped_R, 0.0)
        is_scored_PAG[agent.problem_R, k, place_R] = is_scored_R
        counts_PAG[agent.problem_R, k, place_R] = is_scored_R & agent.counts_R
    return GroupedRewards(
        reward_PAG=torch.from_numpy(reward_PAG),
        shaped_PAG=torch.from_numpy(shaped_PAG),
        is_scored_PAG=torch.from_numpy(is_scored_PAG),
        counts_PAG=torch.from_numpy(counts_PAG),
        place_R=tuple((agent.problem_R, place_R) for agent, place_R in zip(agents, places, strict=True)),
    )


def _places(problem_R: NDArray[np.int64], num_problems: int) -> NDArray[np.int64]:
    """For each response, the number of earlier responses to the same problem."""
    num_earlier_P = np.zeros(num_problems, np.int64)
    place_R = np.empty(len(problem_R), np.int64)
    for row, problem in enumerate(problem_R.tolist()):
        place_R[row] = num_earlier_P[problem]
        num_earlier_P[problem] += 1
    return place_R
