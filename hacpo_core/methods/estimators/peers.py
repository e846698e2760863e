"""Advantages of methods that add a peer's correct responses to the learner's own group.

Shapes: P problem, A agent, G response of one agent to one problem, L learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hacpo_core import algo
from hacpo_core.config.fields import setting
from hacpo_core.methods.base import why_no_partners
from hacpo_core.methods.estimators.groups import GroupEstimator

if TYPE_CHECKING:
    from torch import Tensor

    from hacpo_core.algo.advantages import Baseline
    from hacpo_core.algo.rewards import GroupedRewards


@dataclass(frozen=True)
class PeerRows(GroupEstimator):
    """Own rows as with `group`. A peer's row: relative to the learner's own group, or its reward.

    If the learner's own rewards for a problem are all equal, the advantage of a peer's row is R - mean, not divided by
    a standard deviation: 1 for a correct response to a problem that the learner never solves. It is 0 where the learner
    has no scored response.

    Source: LUFFY (2504.14945; group); Mutual RL's SGT (2605.07244; reward). Ours: the advantage of a peer's row where
    own rewards are equal, see docs/decisions.md#peers.
    """

    peer_advantage: str = setting(
        "group",
        "advantage of a peer's row",
        choices={
            "group": "relative to the learner's own group",
            "reward": "its reward, such as 1 for a correct response",
        },
        inert=why_no_partners,
    )

    needs_shared_rollouts = True

    def advantages(self, rewards: GroupedRewards) -> tuple[Baseline, Sequence[Tensor]]:
        """Own rows as with `group`, peers' rows according to `peer_advantage`."""
        baseline, (own_PAG, *_) = super().advantages(rewards)
        reward_PAG, is_scored_PAG = rewards.shaped_PAG, rewards.is_scored_PAG
        advantage_LPAG = []
        for k in range(own_PAG.shape[1]):
            advantage_PAG = reward_PAG * is_scored_PAG
            if self.peer_advantage == "group":
                of_learner = baseline.of_agent(k)
                has_mean_P11 = rewards.counts_PAG[:, k].any(dim=1)[:, None, None]
                difference_PAG = (reward_PAG - of_learner.mean_PA[:, :, None]) * (is_scored_PAG & has_mean_P11)
                standard_PAG = algo.advantages.standardise(reward_PAG, is_scored_PAG, of_learner)
                advantage_PAG = difference_PAG.where(of_learner.is_uniform_PA[:, :, None], standard_PAG)
            advantage_PAG[:, k] = own_PAG[:, k]
            advantage_LPAG.append(advantage_PAG)
        return baseline, advantage_LPAG
