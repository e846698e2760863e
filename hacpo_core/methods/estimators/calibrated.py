"""ILR's perception calibration: rewards shaped by the other agents' rewards for the same problem.

Shapes: P problem, A agent, G response of one agent to one problem, R response of one agent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.methods.estimate import ScoredStep
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.groups import grouped_rewards


@dataclass(frozen=True)
class Calibrated(CapabilityEstimator):
    """Advantages as with `capability`, from shaped rewards R + sum over peers of clip((R - mean) / (max - min), -b, b).

    b = 1 / (number of agents - 1). Mean, max and min are of a peer's rewards for the problem; a peer whose rewards are
    all equal adds 0. Baseline and standard deviation are those of the raw rewards.

    Source: ILR (2509.26306), perception calibration. Ours: baseline and standard deviation of raw rewards, because
    those of calibrated 0/1 rewards would give GRPO's advantages again; see docs/decisions.md#ilr.
    """

    reads_partners = True

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        """Calibrated rewards of all agents; nan where unscored."""
        rewards = grouped_rewards(scored)
        calibrated_PAG = algo.calibration.calibrated_rewards(rewards.reward_PAG, rewards.counts_PAG)
        return {
            agent: np.where(np.isnan(scored.raw_reward_R(agent)), np.nan, rewards.column(calibrated_PAG, k))
            for k, agent in enumerate(scored.agents)
        }
