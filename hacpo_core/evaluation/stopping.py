"""The step after which a training ends: its last one, or an earlier one at which its accuracy has stopped rising."""

from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.results import team_accuracies


def last_step(root: Path, config: ExperimentConfig) -> int:
    """`train.num_steps`, or the step at which `train.stop` ends the training, as far as it was evaluated.

    The accuracy is the mean over all agents, after the steps at which a training evaluates; what else was measured, by
    `hacpo evaluate`, does not count. A training ends when `patience` evaluations in a row do not exceed the
    best one before them; the evaluation before training counts as the first. An unknown accuracy exceeds nothing.
    """
    stop = config.train.stop
    if stop.metric is None:
        return config.train.num_steps
    accuracies = team_accuracies(root, config, stop.metric)
    best, num_without = -1.0, 0
    for step, value in sorted(accuracies.items()):
        is_better = value > best
        best, num_without = (value, 0) if is_better else (best, num_without + 1)
        if num_without >= stop.patience and step:
            return min(step, config.train.num_steps)
    return config.train.num_steps


def why_ended(root: Path, config: ExperimentConfig) -> str | None:
    """Why a training ends before `train.num_steps`; None if it does not."""
    last, num_planned = last_step(root, config), config.train.num_steps
    if last == num_planned:
        return None
    return f"after step {last} of {num_planned}: no new best accuracy on {config.train.stop.metric}"
