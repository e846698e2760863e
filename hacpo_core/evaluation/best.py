"""Training steps with the highest accuracies, whose checkpoints stay on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.results import team_accuracies, training_accuracies

TEAM = "team"
"""stands for all agents together"""


@dataclass(frozen=True, slots=True)
class BestStep:
    """A step and the accuracy after it."""

    step: int
    value: float


def best_steps(root: Path, config: ExperimentConfig) -> Mapping[str, Sequence[BestStep]]:
    """The best steps by `checkpoint.keep_best`, the best first; of equal accuracies, the earlier.

    Steps after which the training does not evaluate are left out, and so is step 0: they have no checkpoint.

    Returns:
        at most `num` steps for each agent, or for TEAM, by the mean over all agents; empty if no metric is set.
    """
    keep_best = config.checkpoint.keep_best
    if keep_best.metric is None:
        return {}
    if keep_best.of == TEAM:
        by_name = {TEAM: team_accuracies(root, config, keep_best.metric)}
    else:
        by_step = training_accuracies(root, config, keep_best.metric)
        by_name = {
            agent: {step: accuracies[agent] for step, accuracies in by_step.items() if agent in accuracies}
            for agent in config.pair.agents
        }
    return {name: _best(of_steps)[: keep_best.num] for name, of_steps in by_name.items()}


def _best(by_step: Mapping[int, float]) -> list[BestStep]:
    candidates = [BestStep(step, value) for step, value in by_step.items() if step and not math.isnan(value)]
    return sorted(candidates, key=lambda candidate: (-candidate.value, candidate.step))


def steps_to_keep(root: Path, config: ExperimentConfig) -> frozenset[int]:
    """Steps whose checkpoints stay, because the accuracy after them is among the best so far."""
    return frozenset(best_step.step for steps in best_steps(root, config).values() for best_step in steps)


def best_texts(root: Path, config: ExperimentConfig) -> Mapping[int, str]:
    """Why the checkpoint of a step stays, for pages: "best by math500: 0.512"; several agents are named."""
    metric = config.checkpoint.keep_best.metric
    texts: dict[int, list[str]] = {}
    for name, steps in best_steps(root, config).items():
        for best_step in steps:
            owner = "" if name == TEAM else f" of {name}"
            texts.setdefault(best_step.step, []).append(f"best by {metric}{owner}: {best_step.value:.3f}")
    return {step: ", ".join(step_texts) for step, step_texts in texts.items()}
