"""Group advantages: rewards relative to the mean of the agent's own group (GRPO, GSPO) or of all agents' responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, when
from hacpo_core.methods.base import Carried, Estimate, Estimator, ScoredStep, State
from hacpo_core.responses import ORDINARY

if TYPE_CHECKING:
    from hacpo_core.algo.advantages import CrossBaseline, JointAdvantages
    from hacpo_core.algo.rectangle import Rectangle


@dataclass(frozen=True)
class GroupEstimator(Estimator):
    """A = (R - mean) / std, over the agent's own group or over all agents' responses to the problem.

    Source: HACPO Eq. 5 (own); HACPO section 5, the Naive baseline (pooled); Dr. GRPO (2503.20783; scale none).
    """

    baseline: str = setting(
        "own",
        "baseline that is subtracted from rewards",
        choices={"own": "the mean of the agent's own group", "pooled": "all agents' mean, unscaled"},
    )

    scale: str = setting(
        "group",
        "divisor of the difference between reward and baseline",
        choices={
            "group": "the standard deviation of the group that the baseline is the mean of",
            "own": "the standard deviation of the agent's own group; as group where its rewards are all equal",
            "batch": "the standard deviation of all the agent's rewards in the step",
            "none": "no division (Dr. GRPO)",
        },
    )

    overlong_share: float = setting(
        0.0,
        "penalise long responses: over the last overlong_share of rollout.max_response_tokens, the penalty grows "
        "linearly to overlong_penalty (DAPO); 0: no penalty",
        at_least=0,
        at_most=1,
    )
    overlong_penalty: float = setting(
        1.0,
        "reduction of the reward of a response at the limit",
        above=0,
        at_most=1e3,
        inert=when("method.estimate.overlong_share", 0),
    )

    @property
    def reads_partners(self) -> bool:
        """True with the pooled baseline."""
        return self.baseline == "pooled"

    def shape(self, scored: ScoredStep) -> Mapping[str, NDArray[np.float64]]:
        """R - penalty * min(1, max(0, n - (limit - buffer)) / buffer),   n tokens, buffer = overlong_share * limit."""
        if self.overlong_share == 0:
            return {}
        buffer = self.overlong_share * scored.max_response_tokens
        allowed = scored.max_response_tokens - buffer
        return {
            agent: scored.raw_reward_R(agent)
            - self.overlong_penalty * ((responses.token_ids.lengths - allowed) / buffer).clip(0.0, 1.0)
            for agent, responses in scored.responses.items()
        }

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages with weights of 1."""
        rewards = rectangle_of(scored)
        return estimate_of(scored, rewards, self.joint(rewards)), state

    def joint(self, rewards: Rectangle, *, cross_baseline: CrossBaseline = "source") -> JointAdvantages:
        """Advantages of all responses for all learners; see `hacpo_core.algo.advantages.joint_advantages`."""
        return algo.advantages.joint_advantages(
            rewards.reward_PAG,
            rewards.is_scored_PAG,
            algo.capability.unit_ratios(rewards.reward_PAG.shape[1]).ratio_AA,
            baseline=self.baseline,
            cross_baseline=cross_baseline,
            cross_weight="one",
            scale=self.scale,  # type: ignore[arg-type]
            counts_PAG=rewards.counts_PAG,
            shaped_PAG=rewards.shaped_PAG,
        )


def rectangle_of(scored: ScoredStep) -> Rectangle:
    """Rewards of the step as problem x agent x response.

    Means and standard deviations are of the raw rewards of ordinary responses. A shaped reward affects only the
    advantage of its own row.
    """
    place = {problem_id: p for p, problem_id in enumerate(scored.problem_ids)}
    rewards = [
        algo.rectangle.AgentRewards(
            problem_R=np.array([place[problem_id] for problem_id in responses.problem_id], dtype=np.int64),
            reward_R=scored.raw_reward_R(agent),
            shaped_R=scored.reward_R(agent),
            counts_R=np.array([tag == ORDINARY for tag in responses.tag], dtype=bool),
        )
        for agent, responses in scored.responses.items()
    ]
    return algo.rectangle.rectangle(rewards, len(scored.problem_ids))


def own_estimate(scored: ScoredStep, advantage_R: Mapping[str, NDArray[np.float64]]) -> Estimate:
    """An estimate with the same advantages for all learners, weight 1, and the advantage metrics.

    Args:
        scored: the step.
        advantage_R: of each agent's responses; 0 where unscored.
    """
    carried = {agent: Carried(column, np.ones(len(column))) for agent, column in advantage_R.items()}
    figures = {}
    for agent, column in advantage_R.items():
        scored_R = column[~np.isnan(scored.raw_reward_R(agent))]
        figures[agent] = {"advantage/own_mean": float(scored_R.mean()), "advantage/own_std": float(scored_R.std())}
    return Estimate(dict.fromkeys(scored.agents, carried), figures)


def estimate_of(
    scored: ScoredStep,
    rectangle: Rectangle,
    joint: JointAdvantages,
    *,
    figures: Mapping[str, Mapping[str, float]] | None = None,
    run_figures: Mapping[str, float] | None = None,
) -> Estimate:
    """An estimate from joint advantages, with the advantage metrics and the given ones."""
    carried: dict[str, dict[str, Carried]] = {}
    weight_LA = joint.weight_LA.tolist()
    logged: dict[str, dict[str, float]] = {}
    for k, learner in enumerate(scored.agents):
        carried[learner] = {}
        for j, source in enumerate(scored.agents):
            advantage_R = rectangle.column(joint.advantage_LPAG[k], j)
            carried[learner][source] = Carried(advantage_R, np.full(len(advantage_R), weight_LA[k][j]))
        own_R = carried[learner][learner].advantage_R[rectangle.column(rectangle.is_scored_PAG, k)]
        logged[learner] = {
            "advantage/baseline_mean": float(joint.baseline.mean_PA[:, k].mean()),
            "advantage/own_mean": float(own_R.mean()),
            "advantage/own_std": float(own_R.std()),
            "advantage/uniform_share": float(joint.baseline.is_uniform_PA[:, k].double().mean()),
            **(figures or {}).get(learner, {}),
        }
    return Estimate(carried, logged, run_figures or {})
