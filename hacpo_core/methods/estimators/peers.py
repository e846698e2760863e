"""Advantages of methods that add a peer's correct responses to the learner's own group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hacpo_core.config.fields import setting
from hacpo_core.methods.base import without_others
from hacpo_core.methods.estimators.groups import GroupEstimator

if TYPE_CHECKING:
    from hacpo_core.algo.advantages import CrossBaseline, JointAdvantages
    from hacpo_core.algo.rectangle import Rectangle


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
        inert=without_others,
    )

    @property
    def needs_shared_rollouts(self) -> bool:
        """True: it is about peers' rows."""
        return True

    def joint(self, rewards: Rectangle, *, cross_baseline: CrossBaseline = "learner") -> JointAdvantages:
        """Own rows as with `group`, peers' rows according to `peer_advantage`."""
        joint = super().joint(rewards, cross_baseline=cross_baseline)
        of_learners_LPAG = joint.advantage_LPAG.clone()
        for k in range(len(of_learners_LPAG)):
            own_PG = joint.advantage_LPAG[k][:, k]
            if self.peer_advantage == "reward":
                of_learners_LPAG[k] = rewards.shaped_PAG * rewards.is_scored_PAG
            else:
                has_mean_P11 = rewards.counts_PAG[:, k].any(dim=1)[:, None, None]
                difference_PAG = rewards.shaped_PAG - joint.baseline.mean_PA[:, k, None, None]
                difference_PAG = difference_PAG * (rewards.is_scored_PAG & has_mean_P11)
                is_uniform_P11 = joint.baseline.is_uniform_PA[:, k, None, None]
                of_learners_LPAG[k] = difference_PAG.where(is_uniform_P11, of_learners_LPAG[k])
            of_learners_LPAG[k, :, k] = own_PG
        return replace(joint, advantage_LPAG=of_learners_LPAG)
