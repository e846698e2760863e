"""OPO's advantages: each reward minus the group's mean reward weighted by the lengths of the responses.

Shapes: P problem, A agent, G response of one agent to one problem, R response of one agent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hacpo_core import algo
from hacpo_core.methods.base import Estimate, Estimator, ScoredStep, State
from hacpo_core.methods.estimators.groups import estimate_of, rectangle_of


@dataclass(frozen=True)
class LengthWeighted(Estimator):
    """A = R - sum n R / sum n over the agent's own group, n tokens of a response.

    Source: OPO (2505.23585), the baseline of least variance if gradients grow with the length of a response.
    """

    reads_partners = False

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages with weights of 1. Shaped rewards are compared with the baseline of the raw ones."""
        rewards = rectangle_of(scored)
        num_tokens_PAG = np.zeros(tuple(rewards.reward_PAG.shape))
        for k, responses in enumerate(scored.responses.values()):
            problem_R, place_R = rewards.place_R[k]
            num_tokens_PAG[problem_R, k, place_R] = responses.token_ids.lengths
        baseline = algo.advantages.length_weighted_baseline(
            rewards.reward_PAG, rewards.counts_PAG, rewards.reward_PAG.new_tensor(num_tokens_PAG)
        )
        advantage_PAG = algo.advantages.standardise(rewards.shaped_PAG, rewards.is_scored_PAG, baseline)
        return estimate_of(scored, rewards, baseline, [advantage_PAG] * advantage_PAG.shape[1]), state
