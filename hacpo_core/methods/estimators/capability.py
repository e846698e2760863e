"""HACPO's advantages: rewards rescaled by the agents' capabilities, averaged over a window of steps.

Shapes: P problem, A agent, G response of one agent to one problem, L learner.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hacpo_core import algo
from hacpo_core.config.fields import setting, unless
from hacpo_core.methods.base import State, why_no_partners
from hacpo_core.methods.estimate import Estimate, Estimator, ScoredStep
from hacpo_core.methods.estimators.groups import estimate_of, grouped_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from hacpo_core.algo.advantages import Baseline
    from hacpo_core.algo.rewards import GroupedRewards
    from hacpo_core.config import ExperimentConfig

_log = logging.getLogger(__name__)


def _why_no_ratios(_: Any, config: ExperimentConfig) -> str | None:
    estimator: CapabilityEstimator = config.method.estimate
    if len(config.pair.agents) == 1:
        return "one agent has no partner to compare with"
    uses_weight = estimator.cross_weight == "capability" and config.method.shares_rollouts
    is_unused = estimator.baseline != "capability" and not uses_weight
    return f"method {config.method.name} uses no capability ratio" if is_unused else None


def _why_no_capability(_: Any, config: ExperimentConfig) -> str | None:
    return None if config.method.estimate.has_teachers else _why_no_ratios(_, config)


@dataclass(frozen=True)
class CapabilityEstimator(Estimator):
    """A = (R - mean of w R) / std over all agents' responses; others' rows times w, the ratio of two capabilities.

    An agent's capability is its mean reward, averaged over a window of steps. The state is
    {"window": {agent: [oldest, ..., newest]}}.

    Source: HACPO Eq. 6-10, 50; the bounds are the official code's.
    """

    window: int = setting(
        5,
        "K of Eq. 9: number of steps averaged, the current one included",
        at_least=1,
        at_most=1e6,
        remedy="K counts the averaged steps, the current one included; 5 in the paper",
        inert=_why_no_capability,
    )
    metric: str = setting(
        "reward_mean",
        "definition of an agent's capability in a batch",
        choices={
            "reward_mean": "its mean reward (Eq. 9)",
            "positive_rate": "the share of positive rewards (official code)",
        },
        inert=_why_no_capability,
    )
    max_counted: int | None = setting(
        None,
        "an agent's first responses to each problem that count in its capability; null: all (8 in the original code)",
        unit="responses",
        at_least=1,
        inert=_why_no_capability,
    )
    equal_before: int = setting(
        0,
        "capability ratios are 1 in steps before this one (original code, where asked)",
        unit="step",
        at_least=0,
        inert=_why_no_ratios,
    )
    baseline: str = setting(
        "capability",
        "baseline that is subtracted from rewards",
        choices={
            "capability": "all agents' mean, scaled by capability ratios (Eq. 7)",
            "own": "the mean of the agent's own group",
            "pooled": "all agents' mean, unscaled",
        },
    )
    binary_guard: bool = setting(
        True,
        "replace a capability baseline above 1, which no reward reaches, by the agent's own mean (official code)",
        inert=unless("method.estimate.baseline", "capability"),
    )
    cross_baseline: str = setting(
        "source",
        "baseline of cross-agent responses",
        choices={
            "source": "that of the agent that sampled it (Eq. 10)",
            "learner": "that of the learner (Eq. 50, official code)",
        },
        inert=why_no_partners,
    )
    cross_weight: str = setting(
        "capability",
        "weight of cross-agent advantages",
        choices={"capability": "w[j, k] of Eq. 10", "one": "1"},
        inert=why_no_partners,
    )

    @property
    def reads_partners(self) -> bool:
        """True unless the baseline is `own`."""
        return self.baseline != "own"

    def window_of(self, scored: ScoredStep, batch_A: Tensor, state: State) -> dict[str, list[float]]:
        """Capabilities over the window, by agent; this step is the last."""
        before = state.get("window", {})
        return {
            k: [*before.get(k, []), capability][-self.window :]
            for k, capability in zip(scored.agents, batch_A.tolist(), strict=True)
        }

    def batch_capability(self, rewards: GroupedRewards) -> Tensor:
        """capability_A of this step alone."""
        counts_PAG = rewards.counts_PAG
        if self.max_counted is not None:
            counts_PAG = counts_PAG.clone()
            counts_PAG[:, :, self.max_counted :] = False
        measure = algo.capability.mean_reward if self.metric == "reward_mean" else algo.capability.positive_rate
        return measure(rewards.reward_PAG, counts_PAG)

    def ratios(self, smoothed_A: Tensor, step: int) -> Tensor:
        """Capability ratios of all pairs of agents in a step, ratio_AA."""
        is_equal = len(smoothed_A) == 1 or step < self.equal_before
        return algo.capability.capability_ratios(smoothed_A.new_ones(len(smoothed_A)) if is_equal else smoothed_A)

    def advantages(self, rewards: GroupedRewards, ratio_AA: Tensor) -> tuple[Baseline, Sequence[Tensor]]:
        """Each agent's baseline, and the advantages of all responses for each learner."""
        groups, equations = (rewards.reward_PAG, rewards.counts_PAG), algo.advantages
        if self.baseline == "capability":
            baseline = equations.capability_baseline(*groups, ratio_AA)
            if self.binary_guard:
                baseline = equations.guard_binary(baseline, *groups)
        else:
            baseline = (equations.own_baseline if self.baseline == "own" else equations.pooled_baseline)(*groups)
        rows, learners = (rewards.shaped_PAG, rewards.is_scored_PAG), range(len(ratio_AA))
        if self.cross_baseline == "learner":
            return baseline, [equations.standardise(*rows, baseline.of_agent(k)) for k in learners]
        return baseline, [equations.standardise(*rows, baseline)] * len(learners)

    def weights(self, ratio_AA: Tensor) -> Tensor:
        """weight_LA, w[j, k] of Eq. 10: of each agent's responses for each learner; 1 for its own."""
        weight_LA = ratio_AA.T.clone() if self.cross_weight == "capability" else ratio_AA.new_ones(ratio_AA.shape)
        return weight_LA.fill_diagonal_(1.0)

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        """Advantages and weights, and the window after this step."""
        rewards, agents = grouped_rewards(scored), scored.agents
        batch_A = self.batch_capability(rewards)
        window = self.window_of(scored, batch_A, state)
        smoothed_A = algo.capability.windowed_capability(np.array([window[k] for k in agents]).T)
        ratio_AA, bounds = self.ratios(smoothed_A, scored.step), algo.capability
        baseline, advantage_LPAG = self.advantages(rewards, ratio_AA)
        num_floored = int((smoothed_A < bounds.FLOOR).sum())
        num_clipped = int(((ratio_AA == bounds.MIN_RATIO) | (ratio_AA == bounds.MAX_RATIO)).sum())
        if num_floored or num_clipped or baseline.num_guarded:
            message = "step %d: %d capabilities floored, %d ratios clipped, %d baselines guarded"
            _log.info(message, scored.step, num_floored, num_clipped, baseline.num_guarded)
        figures: dict[str, Any] = {
            k: {
                "capability/batch": float(batch_A[i]),
                "capability/smoothed": float(smoothed_A[i]),
                **{f"capability/ratio_to_{j}": float(ratio_AA[i, n]) for n, j in enumerate(agents) if n != i},
            }
            for i, k in enumerate(agents)
        }
        run_figures = {
            "capability/num_floored": float(num_floored),
            "capability/num_clipped": float(num_clipped),
            "advantage/num_guarded": float(baseline.num_guarded),
        }
        estimate = estimate_of(scored, rewards, baseline, advantage_LPAG, weight_LA=self.weights(ratio_AA))
        figures = {k: {**estimate.figures[k], **figures[k]} for k in agents}
        return replace(estimate, figures=figures, run_figures=run_figures), {"window": window}
