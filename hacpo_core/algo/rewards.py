"""A step's rewards as arrays problem x agent x response, from which means and standard deviations are computed.

Agents may have different numbers of responses to a problem. Entries without a response are unscored.

Shapes: P problem, A agent, G response, R response of one agent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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


def group_rewards(
    problem_R: Sequence[NDArray[np.int64]],
    reward_R: Sequence[NDArray[np.float64]],
    shaped_R: Sequence[NDArray[np.float64]],
    counts_R: Sequence[NDArray[np.bool_]],
    num_problems: int,
) -> GroupedRewards:
    """Arrange the responses of all agents; an agent's responses to a problem keep their order.

    Args:
        problem_R: of each agent, the index of each response's problem.
        reward_R: raw reward; nan: unscored.
        shaped_R: shaped reward, of the scored ones.
        counts_R: whether the response counts in means and standard deviations.
        num_problems: P.
    """
    places = [_places(of_agent, num_problems) for of_agent in problem_R]
    num_G = max((int(place_R.max(initial=0)) + 1 for place_R in places), default=1)
    shape = (num_problems, len(problem_R), num_G)
    reward_PAG, shaped_PAG = np.zeros(shape), np.zeros(shape)
    is_scored_PAG, counts_PAG = np.zeros(shape, bool), np.zeros(shape, bool)
    for k, place_R in enumerate(places):
        at, is_scored_R = (problem_R[k], k, place_R), ~np.isnan(reward_R[k])
        reward_PAG[at] = np.where(is_scored_R, reward_R[k], 0.0)
        shaped_PAG[at] = np.where(is_scored_R, shaped_R[k], 0.0)
        is_scored_PAG[at] = is_scored_R
        counts_PAG[at] = is_scored_R & counts_R[k]
    return GroupedRewards(
        reward_PAG=torch.from_numpy(reward_PAG),
        shaped_PAG=torch.from_numpy(shaped_PAG),
        is_scored_PAG=torch.from_numpy(is_scored_PAG),
        counts_PAG=torch.from_numpy(counts_PAG),
        place_R=tuple(zip(problem_R, places, strict=True)),
    )


def _places(problem_R: NDArray[np.int64], num_problems: int) -> NDArray[np.int64]:
    """For each response, the number of earlier responses to the same problem."""
    num_earlier_P = np.zeros(num_problems, np.int64)
    place_R = np.empty(len(problem_R), np.int64)
    for row, problem in enumerate(problem_R.tolist()):
        place_R[row] = num_earlier_P[problem]
        num_earlier_P[problem] += 1
    return place_R
