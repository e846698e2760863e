"""RLOO's advantages: each reward less the mean of its agent's other responses to the problem."""

from __future__ import annotations

from dataclasses import dataclass

from hacpo_core import algo
from hacpo_core.methods.base import Estimate, Estimator, ScoredStep, State
from hacpo_core.methods.estimators.groups import own_estimate, rectangle_of


@dataclass(frozen=True)
class LeaveOneOut(Estimator):
    """A = R - mean of the other rewards in the agent's own group.

    Tagged rows are no part of the mean of others, but are compared with that of all ordinary ones.

    Source: RLOO (2402.14740).
    """

    @property
    def reads_partners(self) -> bool:
        """False: the agent's own responses are enough."""
        return False

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Weights are 1; what a shaped reward adds to the raw one is added to the row's own advantage."""
        rewards = rectangle_of(scored)
        advantage_PAG = algo.advantages.leave_one_out(rewards.reward_PAG, rewards.is_scored_PAG, rewards.counts_PAG)
        advantage_PAG = advantage_PAG + (rewards.shaped_PAG - rewards.reward_PAG)
        columns = {agent: rewards.column(advantage_PAG, k) for k, agent in enumerate(scored.agents)}
        return own_estimate(scored, columns), state
