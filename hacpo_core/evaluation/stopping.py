"""The step after which a training ends: its last one, or an earlier one at which its accuracy has stopped rising."""

from __future__ import annotations

from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import benchmarks_after
from hacpo_core.evaluation.results import intact_results


def last_step(root: Path, config: ExperimentConfig) -> int:
    """`train.num_steps`, or the step at which `train.stop` ends the training, as far as it was evaluated.

    The accuracy is the mean over all agents, after the steps at which a training evaluates; what else was measured, by
    `hacpo evaluate`, does not count. A training ends when `patience` evaluations in a row do not exceed the
    best one before them; the evaluation before training counts as the first. An unknown accuracy exceeds nothing.
    """
    stop = config.train.stop
    if stop.metric is None:
        return config.train.num_steps
    values: dict[int, dict[str, float]] = {}
    for result in intact_results(root):
        if result.benchmark == stop.metric and stop.metric in benchmarks_after(config, result.step):
            values.setdefault(result.step, {})[result.agent] = result.value
    best, num_without = -1.0, 0
    for step in sorted(values):
        if len(values[step]) < len(config.pair.agents):
            continue
        value = sum(values[step].values()) / len(values[step])
        is_better = value > best
        best, num_without = (value, 0) if is_better else (best, num_without + 1)
        if num_without >= stop.patience and step:
            return min(step, config.train.num_steps)
    return config.train.num_steps
