"""Pass@k training: advantages of the reward that the best of k responses gets.

Shapes: P problem, A agent, G response of one agent to one problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import Estimate, Estimator, ScoredStep, State
from hacpo_core.methods.estimators.groups import own_estimate, rectangle_of


@dataclass(frozen=True)
class PassAtK(Estimator):
    """A = (1 - rho) / sigma of right responses, (1 - rho - q) / sigma of others, sigma = sqrt(rho (1 - rho)).

    rho is the chance that k of the agent's n responses to the problem, c of them right, hold a right one:
    1 - C(n - c, k) / C(n, k). q is the chance that k - 1 others beside a wrong one hold none: C(n - c - 1, k - 1) /
    C(n - 1, k - 1). Problems that k responses nearly always solve weigh little, hard ones much.

    Source: pass@k training (2508.10751), analytical derivation.
    """

    k: int = setting(4, "responses of which the best counts; at most rollout.num_samples", at_least=1, at_most=1e5)
    success_from: float = setting(1.0, "smallest reward of a right response", above=0, at_most=1)

    reads_partners = False

    def why_unfit(self, *, num_samples: int) -> str | None:
        """More than there are responses."""
        if self.k <= num_samples:
            return None
        return f"k: got {self.k}, expected at most the {num_samples} responses to a problem; lower it"

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages with weights of 1."""
        rewards = rectangle_of(scored)
        advantage_PAG = algo.advantages.pass_at_k(
            rewards.reward_PAG >= self.success_from, rewards.is_scored_PAG, rewards.counts_PAG, k=self.k
        )
        columns = {agent: rewards.column(advantage_PAG, k) for k, agent in enumerate(scored.agents)}
        return own_estimate(scored, columns), state
