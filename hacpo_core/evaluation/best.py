"""Training steps with the highest accuracies, whose checkpoints stay on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.results import team_accuracies


@dataclass(frozen=True, slots=True)
class BestStep:
    """A step and the mean accuracy of all agents after it."""

    step: int
    value: float


def best_steps(root: Path, config: ExperimentConfig) -> list[BestStep]:
    """The best steps by `checkpoint.keep_best`, the best first; of equal accuracies, the earlier.

    Steps after which the training does not evaluate are left out, and so is step 0: they have no checkpoint. Empty if
    no metric is set.
    """
    keep_best = config.checkpoint.keep_best
    by_step = {} if keep_best.metric is None else team_accuracies(root, config, keep_best.metric)
    candidates = [BestStep(step, value) for step, value in by_step.items() if step and not math.isnan(value)]
    return sorted(candidates, key=lambda candidate: (-candidate.value, candidate.step))[: keep_best.num]


def steps_to_keep(root: Path, config: ExperimentConfig) -> frozenset[int]:
    """Steps whose checkpoints stay, because the accuracy after them is among the best so far."""
    return frozenset(best_step.step for best_step in best_steps(root, config))


def best_texts(root: Path, config: ExperimentConfig) -> Mapping[int, str]:
    """Why the checkpoint of a step stays, for pages: "best by math500: 0.512"."""
    metric = config.checkpoint.keep_best.metric
    return {best.step: f"best by {metric}: {best.value:.3f}" for best in best_steps(root, config)}
