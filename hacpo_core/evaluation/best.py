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
    chosen = config.checkpoint.keep_best
    if chosen.metric is None:
        return {}
    if chosen.of == TEAM:
        by_name = {TEAM: team_accuracies(root, config, chosen.metric)}
    else:
        by_step = training_accuracies(root, config, chosen.metric)
        by_name = {
            agent: {step: own[agent] for step, own in by_step.items() if agent in own} for agent in config.pair.agents
        }
    return {name: _best(of_steps)[: chosen.num] for name, of_steps in by_name.items()}


def _best(by_step: Mapping[int, float]) -> list[BestStep]:
    known = [BestStep(step, value) for step, value in by_step.items() if step and not math.isnan(value)]
    return sorted(known, key=lambda each: (-each.value, each.step))


def steps_to_keep(root: Path, config: ExperimentConfig) -> frozenset[int]:
    """Steps whose checkpoints stay, because the accuracy after them is among the best so far."""
    return frozenset(each.step for of_one in best_steps(root, config).values() for each in of_one)


def best_texts(root: Path, config: ExperimentConfig) -> Mapping[int, str]:
    """Why the checkpoint of a step stays, for pages: "best by math500: 0.512"; several agents are named."""
    metric = config.checkpoint.keep_best.metric
    texts: dict[int, list[str]] = {}
    for name, steps in best_steps(root, config).items():
        for each in steps:
            owner = "" if name == TEAM else f" of {name}"
            texts.setdefault(each.step, []).append(f"best by {metric}{owner}: {each.value:.3f}")
    return {step: ", ".join(found) for step, found in texts.items()}
