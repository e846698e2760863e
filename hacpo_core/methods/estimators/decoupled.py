"""GDPO's advantages: each reward function is normalised over its group before they are added.

Shapes: P problem, A agent, G response of one agent to one problem, R response of one agent, F reward function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.methods.base import Estimate, Estimator, ScoredStep, State
from hacpo_core.methods.estimators.groups import own_estimate
from hacpo_core.responses import ORDINARY


@dataclass(frozen=True)
class Decoupled(Estimator):
    """A = (a - mean a) / std a over the agent's step, a = sum_f w_f (R_f - mean R_f) / std R_f over its own groups.

    R_f is the reward of function f and w_f its weight in `reward.weights`. A row to which no function gives an
    advantage keeps 0. Capabilities and other figures still read the weighted mean of the rewards.

    Source: GDPO (2601.05242).
    """

    reads_partners = False

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages with weights of 1."""
        import torch  # slow to import, and plans and the dashboard read only a method's fields

        columns = {}
        for agent, responses in scored.responses.items():
            counts_R = np.array([tag == ORDINARY for tag in responses.tag]) & ~np.isnan(scored.raw_reward_R(agent))
            parts_RF = _parts(scored, agent)
            advantage_FR = np.stack([_of_groups(scored, agent, reward_R, counts_R) for reward_R in parts_RF.T])
            weight_F = np.array(scored.reward_weights or [1.0] * len(advantage_FR))
            added_R = algo.advantages.decoupled(
                torch.from_numpy(advantage_FR), torch.from_numpy(weight_F), torch.from_numpy(counts_R)
            )
            columns[agent] = np.where(np.isnan(scored.raw_reward_R(agent)), 0.0, added_R.numpy())
        return own_estimate(scored, columns), state


def _parts(scored: ScoredStep, agent: str) -> NDArray[np.float64]:
    """Rewards of an agent's responses by function; one function's are the raw rewards."""
    verdicts = scored.responses[agent].verdicts
    assert verdicts is not None, "a scored step is verified"
    return verdicts.raw_reward_R[:, None] if verdicts.parts_RF is None else verdicts.parts_RF


def _of_groups(
    scored: ScoredStep, agent: str, reward_R: NDArray[np.float64], counts_R: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """A reward function's advantages relative to the agent's own groups."""
    place = {problem_id: p for p, problem_id in enumerate(scored.problem_ids)}
    problem_R = np.array([place[problem_id] for problem_id in scored.responses[agent].problem_id], np.int64)
    rewards = algo.rectangle.rectangle(
        [algo.rectangle.AgentRewards(problem_R, reward_R, reward_R, counts_R)], len(scored.problem_ids)
    )
    baseline = algo.advantages.own_baseline(rewards.reward_PAG, rewards.counts_PAG)
    advantage_PAG = algo.advantages.standardise(rewards.reward_PAG, rewards.is_scored_PAG, baseline)
    return rewards.column(advantage_PAG, 0)
