"""On-policy distillation: the strongest agent scores every token that a weaker agent sampled.

Shapes: A agent, R response of one agent, N token of its responses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.estimate import Estimate, ScoredStep
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.groups import grouped_rewards


@dataclass(frozen=True)
class Distilled(CapabilityEstimator):
    """Token advantage weight (log pi_teacher - log pi_old); the teacher is the most capable agent of the step.

    Capability is defined as in `capability`, averaged over its window. The most capable agent has no teacher and trains
    on verified rewards. So do all agents in a step whose capabilities are equal.

    Source: on-policy distillation (GKD, 2306.13649, reverse KL on the learner's own samples). Ours: the teacher is a
    partner that trains too; spans of text where tokenizers differ; see docs/decisions.md#on-policy-distillation.
    """

    teacher_weight: float = setting(
        1.0, "advantage per nat of difference between teacher and learner", above=0, at_most=1e3
    )
    max_difference: float = setting(
        10.0, "bound on a token's difference: clipped to +- this value, in nats", above=0, at_most=1e3
    )

    reads_partners = True
    has_teachers = True

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        """The most capable agent, for all less capable ones."""
        batch_A = self.batch_capability(grouped_rewards(scored))
        smoothed_A = algo.capability.windowed_capability(
            np.array([self.window_of(scored, batch_A, state)[agent] for agent in scored.agents]).T
        )
        capability = dict(zip(scored.agents, smoothed_A.tolist(), strict=True))
        best = max(capability, key=lambda agent: capability[agent])
        return {agent: best for agent, value in capability.items() if value < capability[best]}

    def token_advantage(self, difference_N: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clipped, centred and weighted differences; 0 for tokens that the teacher did not score.

        The mean over the agent's tokens of the step is subtracted, which reduces noise and keeps the expected gradient.
        """
        cut_N = difference_N.clip(-self.max_difference, self.max_difference)
        is_scored_N = ~np.isnan(difference_N)
        mean = float(cut_N[is_scored_N].mean()) if is_scored_N.any() else 0.0
        return self.teacher_weight * np.where(is_scored_N, cut_N - mean, 0.0)

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages of rewards for agents without a teacher."""
        estimate, next_state = super().estimate(scored, state)
        teacher_of = self.teachers(scored, state)
        advantages = {
            learner: {
                source: np.zeros(len(column)) if learner in teacher_of else column
                for source, column in source_columns.items()
            }
            for learner, source_columns in estimate.advantages.items()
        }
        return replace(estimate, advantages=advantages), next_state
