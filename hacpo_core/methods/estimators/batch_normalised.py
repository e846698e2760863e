"""REINFORCE++'s advantages: rewards normalised over the tokens of an agent's whole batch.

Shapes: R response of one agent.
"""

from dataclasses import dataclass

import numpy as np

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import State
from hacpo_core.methods.estimate import Estimate, Estimator, ScoredStep
from hacpo_core.methods.estimators.groups import own_estimate
from hacpo_core.responses import ORDINARY


@dataclass(frozen=True)
class BatchNormalised(Estimator):
    """A = (R - mean) / std, over the tokens of all the agent's ordinary responses of the step.

    Source: REINFORCE++ and REINFORCE++-baseline (2501.03262), normalised as verl does.
    """

    subtracts_group_mean: bool = setting(False, "first subtract the mean of the agent's own group from each reward")

    reads_partners = False

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages with weights of 1."""
        import torch  # slow to import, and plans and the dashboard read only a method's fields

        columns = {}
        for agent, responses in scored.responses.items():
            raw_R, shaped_R = scored.raw_reward_R(agent), scored.reward_R(agent)
            is_scored_R = ~np.isnan(raw_R)
            counts_R = is_scored_R & np.array([tag == ORDINARY for tag in responses.tag])
            mean_R = _group_means(responses.problem_id, raw_R, counts_R) if self.subtracts_group_mean else 0.0
            whitened_R = algo.advantages.whitened(
                torch.from_numpy(np.where(is_scored_R, raw_R - mean_R, 0.0)),
                torch.from_numpy(responses.token_ids.lengths),
                torch.from_numpy(counts_R),
                compared_R=torch.from_numpy(np.where(is_scored_R, shaped_R - mean_R, 0.0)),
            )
            columns[agent] = np.where(is_scored_R, whitened_R.numpy(), 0.0)
        return own_estimate(scored, columns), state


def _group_means(problem_id: tuple[str, ...], reward_R: np.ndarray, counts_R: np.ndarray) -> np.ndarray:
    """Mean of the counted rewards of each response's problem; 0 if it has none."""
    number = {name: n for n, name in enumerate(dict.fromkeys(problem_id))}
    group_R = np.array([number[name] for name in problem_id], dtype=np.int64)
    sums = np.bincount(group_R, np.where(counts_R, reward_R, 0.0), len(number))
    counts = np.bincount(group_R, counts_R.astype(np.float64), len(number))
    means: np.ndarray = (sums / np.maximum(counts, 1.0))[group_R]
    return means
