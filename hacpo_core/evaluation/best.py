"""Training steps with the highest accuracies, whose checkpoints stay on disk."""

import math
from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.evaluation.results import team_accuracies


def best_steps(root: Path, config: ExperimentConfig) -> dict[int, float]:
    """Mean accuracy of all agents after the best steps by `checkpoint.keep_best`, the best first.

    Of equal accuracies, the earlier step comes first. Steps after which the training does not evaluate are left out,
    and so is step 0: they have no checkpoint. Empty if no metric is set.
    """
    keep_best = config.checkpoint.keep_best
    by_step = {} if keep_best.metric is None else team_accuracies(root, config, keep_best.metric)
    candidates = [(step, value) for step, value in by_step.items() if step and not math.isnan(value)]
    return dict(sorted(candidates, key=lambda candidate: (-candidate[1], candidate[0]))[: keep_best.num])
