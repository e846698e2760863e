"""HA-DW's advantages: weighted by how hard a problem is for the learner, relative to its recent accuracy.

Shapes: P problem, A agent, G response of one agent to one problem, R response of one agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, unless
from hacpo_core.methods.base import State, why_no_partners
from hacpo_core.methods.estimate import Estimate, ScoredStep
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.groups import grouped_rewards

if TYPE_CHECKING:
    from hacpo_core.algo.rewards import GroupedRewards


@dataclass(frozen=True)
class DifficultyWeighted(CapabilityEstimator):
    """Advantages as with `capability`, times scale exp(-sign(d) sign(R - p) |d|),   d = p - C.

    p is the mean raw reward of the response's own group; the anchor C is the learner's recent accuracy. With
    `baseline: own` and only own rows, the weighted advantages are GRPO's and GSPO's; with `baseline: capability`, they
    are HACPO's. Besides the window, the state holds each agent's last accuracies (hard) or anchors (kalman).

    Source: HA-DW (2601.08521). Ours: one anchor per learner, from its own rows; others' rows keep their weight unless
    `weighs` is `all`; the start of the Kalman anchor. See docs/decisions.md#ha-dw.
    """

    anchor: str = setting(
        "hard",
        "estimate of the learner's accuracy, with which a problem's difficulty is compared",
        choices={
            "hard": "mean accuracy over the last steps",
            "kalman": "moving average whose rate grows with the spread of recent anchors",
        },
    )
    anchor_steps: int = setting(10, "number of recent steps that the anchor is computed from", at_least=1, at_most=1e4)
    kalman_gain: float = setting(
        1.0,
        "rate of the Kalman anchor per unit of the anchors' standard deviation",
        above=0,
        at_most=1e6,
        inert=unless("method.estimate.anchor", "kalman"),
    )
    difficulty_scale: float = setting(
        1.3, "lambda, the weight of a problem of average difficulty (d = 0)", above=0, at_most=1e3
    )
    weighs: str = setting(
        "own",
        "which rows are weighted",
        choices={
            "own": "the learner's own rows",
            "all": "also others' rows, by the sampling agent's group and the learner's anchor",
        },
        inert=why_no_partners,
    )

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """The estimate of `capability`, with its weights multiplied by the difficulty weights."""
        estimate, next_state = super().estimate(scored, state)
        rewards = grouped_rewards(scored)
        accuracy_A = algo.capability.mean_reward(rewards.reward_PAG, rewards.counts_PAG)
        accuracy_history = state.get("difficulty", {})
        history: dict[str, list[float]] = {}
        weights: dict[str, Mapping[str, NDArray[np.float64]]] = {}
        figures = {}
        for k, (learner, accuracy) in enumerate(zip(scored.agents, accuracy_A.tolist(), strict=True)):
            anchor, history[learner] = self._anchor(accuracy_history.get(learner, []), accuracy)
            weights[learner] = self._weights(estimate, learner, rewards, anchor, scored)
            own_weight_R = weights[learner][learner]
            is_scored_R = rewards.column(rewards.is_scored_PAG, k)
            figures[learner] = {
                **estimate.figures[learner],
                "difficulty/anchor": anchor,
                "difficulty/weight_mean": float(own_weight_R[is_scored_R].mean()),
                "difficulty/advantage_sum": float((estimate.advantages[learner][learner] * own_weight_R).sum()),
            }
        return replace(estimate, weights=weights, figures=figures), {**next_state, "difficulty": history}

    def _anchor(self, earlier_values: list[float], accuracy: float) -> tuple[float, list[float]]:
        """An agent's anchor, and the history that the next one needs."""
        if self.anchor == "hard":
            accuracies = [*earlier_values, accuracy][-self.anchor_steps :]
            return algo.difficulty.mean_anchor(accuracies), accuracies
        anchor = algo.difficulty.kalman_anchor(earlier_values, accuracy, gain=self.kalman_gain)
        return anchor, [*earlier_values, anchor][-self.anchor_steps :]

    def _weights(
        self, estimate: Estimate, learner: str, rewards: GroupedRewards, anchor: float, scored: ScoredStep
    ) -> Mapping[str, NDArray[np.float64]]:
        weight_PAG = algo.difficulty.difficulty_weights(
            rewards.reward_PAG, rewards.counts_PAG, anchor=anchor, scale=self.difficulty_scale
        )
        weights = {source: estimate.weight_R(learner, source) for source in scored.agents}
        for j, source in enumerate(scored.agents):
            if source == learner or self.weighs == "all":
                weights[source] = weights[source] * rewards.column(weight_PAG, j)
        return weights
