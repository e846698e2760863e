"""Group advantages: rewards relative to the mean of the agent's own group (GRPO, GSPO) or of all agents' responses.

Shapes: P problem, A agent, G response of one agent to one problem, R response of one agent, L learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hacpo_core import algo
from hacpo_core.config.fields import setting, when
from hacpo_core.methods.base import State
from hacpo_core.methods.estimate import Estimate, Estimator, ScoredStep
from hacpo_core.responses import ORDINARY

if TYPE_CHECKING:
    from torch import Tensor

    from hacpo_core.algo.advantages import Baseline
    from hacpo_core.algo.rewards import GroupedRewards


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

    def why_unfit(self, *, num_samples: int) -> str | None:
        """The mean of one response is its reward."""
        if num_samples > 1 or self.baseline != "own":
            return None
        return "baseline: got own with one response to a problem, whose advantage is always 0; set it to pooled"

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
        rewards = grouped_rewards(scored)
        baseline, advantage_LPAG = self.advantages(rewards)
        return estimate_of(scored, rewards, baseline, advantage_LPAG), state

    def advantages(self, rewards: GroupedRewards) -> tuple[Baseline, Sequence[Tensor]]:
        """Each agent's baseline, and the advantages of all responses for each learner."""
        groups, equations = (rewards.reward_PAG, rewards.counts_PAG), algo.advantages
        baseline = (equations.own_baseline if self.baseline == "own" else equations.pooled_baseline)(*groups)
        if self.scale == "own":
            baseline = equations.with_own_std(baseline, *groups)
        elif self.scale == "batch":
            baseline = replace(baseline, std_PA=equations.batch_std(*groups))
        elif self.scale == "none":
            baseline = replace(baseline, std_PA=None)
        advantage_PAG = equations.standardise(rewards.shaped_PAG, rewards.is_scored_PAG, baseline)
        return baseline, [advantage_PAG] * advantage_PAG.shape[1]


def grouped_rewards(scored: ScoredStep) -> GroupedRewards:
    """Rewards of the step as problem x agent x response.

    Means and standard deviations are of the raw rewards of ordinary responses. A shaped reward affects only the
    advantage of its own row.
    """
    place = {problem_id: p for p, problem_id in enumerate(scored.problem_ids)}
    agents, all_responses = scored.agents, scored.responses.values()
    return algo.rewards.group_rewards(
        [np.array([place[name] for name in responses.problem_id], np.int64) for responses in all_responses],
        [scored.raw_reward_R(agent) for agent in agents],
        [scored.reward_R(agent) for agent in agents],
        [np.array([tag == ORDINARY for tag in responses.tag], bool) for responses in all_responses],
        len(scored.problem_ids),
    )


def own_estimate(scored: ScoredStep, advantage_R: Mapping[str, NDArray[np.float64]]) -> Estimate:
    """An estimate with the same advantages for all learners, weight 1, and the advantage metrics.

    Args:
        scored: the step.
        advantage_R: of each agent's responses; 0 where unscored.
    """
    figures = {}
    for agent, column in advantage_R.items():
        scored_R = column[~np.isnan(scored.raw_reward_R(agent))]
        figures[agent] = {"advantage/own_mean": float(scored_R.mean()), "advantage/own_std": float(scored_R.std())}
    return Estimate(dict.fromkeys(scored.agents, advantage_R), figures=figures)


def estimate_of(
    scored: ScoredStep,
    rewards: GroupedRewards,
    baseline: Baseline,
    advantage_LPAG: Sequence[Tensor],
    *,
    weight_LA: Tensor | None = None,
) -> Estimate:
    """An estimate with the advantage metrics.

    Args:
        scored: the step.
        rewards: its rewards.
        baseline: of each agent.
        advantage_LPAG: of all responses, for each learner.
        weight_LA: of each agent's responses for each learner; None: 1.
    """
    advantages: dict[str, dict[str, NDArray[np.float64]]] = {}
    weights: dict[str, dict[str, NDArray[np.float64]]] = {}
    figures: dict[str, dict[str, float]] = {}
    for k, learner in enumerate(scored.agents):
        columns = {source: rewards.column(advantage_LPAG[k], j) for j, source in enumerate(scored.agents)}
        advantages[learner] = columns
        if weight_LA is not None:
            of_sources = zip(columns.items(), weight_LA[k].tolist(), strict=True)
            weights[learner] = {source: np.full(len(column), weight) for (source, column), weight in of_sources}
        own_R = columns[learner][rewards.column(rewards.is_scored_PAG, k)]
        figures[learner] = {
            "advantage/baseline_mean": float(baseline.mean_PA[:, k].mean()),
            "advantage/own_mean": float(own_R.mean()),
            "advantage/own_std": float(own_R.std()),
            "advantage/uniform_share": float(baseline.is_uniform_PA[:, k].double().mean()),
        }
    return Estimate(advantages, weights, figures)
