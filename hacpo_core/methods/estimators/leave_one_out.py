"""RLOO's advantages: each reward minus the mean reward of the agent's other responses to the problem.

Shapes: P problem, A agent, G response of one agent to one problem.
"""

from dataclasses import dataclass

from hacpo_core import algo
from hacpo_core.methods.base import State
from hacpo_core.methods.estimate import Estimate, Estimator, ScoredStep
from hacpo_core.methods.estimators.groups import grouped_rewards, own_estimate


@dataclass(frozen=True)
class LeaveOneOut(Estimator):
    """A = R - mean of the other rewards in the agent's own group.

    Tagged rows do not count in these means. Their own baseline is the mean over all ordinary rows of the group.

    Source: RLOO (2402.14740).
    """

    reads_partners = False

    def why_unfit(self, *, num_samples: int) -> str | None:
        """The first response has no other."""
        return None if num_samples > 1 else "name: got leave_one_out with one response to a problem, which leaves none"

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages with weights of 1. Shaped minus raw reward is added to the advantage of its own row only."""
        rewards = grouped_rewards(scored)
        advantage_PAG = algo.advantages.leave_one_out(rewards.reward_PAG, rewards.is_scored_PAG, rewards.counts_PAG)
        advantage_PAG = advantage_PAG + (rewards.shaped_PAG - rewards.reward_PAG)
        columns = {agent: rewards.column(advantage_PAG, k) for k, agent in enumerate(scored.agents)}
        return own_estimate(scored, columns), state
