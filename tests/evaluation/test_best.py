"""Steps with the best accuracies, and the checkpoints that stay because of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.config.schema import CheckpointConfig, KeepBestConfig
from hacpo_core.evaluation.best import best_steps
from hacpo_core.evaluation.results import results
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.checkpoints import checkpoint_steps
from tests.dashboards.report.finished import finished

TEST = "arithmetic_test"
METRICS = {"tokens/sampled": 1.0, "tokens/trained": 1.0, "reward/mean": 0.5}
KEPT = ("checkpoint.keep_best.metric=dev", "checkpoint.keep=1", "evaluate.during=[dev]", "evaluate.every=1")


def evaluated(root: Path, accuracies: Mapping[tuple[int, str], list[float]], every: int = 1, **chosen: Any) -> Plan:
    """An experiment with these accuracies in quarters, by step and agent, and a choice of the best."""
    rewards = {(step, TEST, agent): [[value] for value in values] for (step, agent), values in accuracies.items()}
    plan = finished(root, "hacpo", rewards=rewards, metrics=METRICS)
    best = CheckpointConfig(keep_best=KeepBestConfig(metric=TEST, **chosen))
    evaluate = replace(plan.config.evaluate, during=[TEST], every=every)
    return replace(plan, config=replace(plan.config, checkpoint=best, evaluate=evaluate))


@pytest.mark.slow
def test_best_steps_are_those_of_all_agents(tmp_path: Path) -> None:
    quarters = {n: [1.0] * n + [0.0] * (4 - n) for n in range(5)}
    accuracies = {
        (0, "qwen-tiny"): quarters[4],
        (0, "llama-tiny"): quarters[4],
        (1, "qwen-tiny"): quarters[3],
        (1, "llama-tiny"): quarters[1],
        (2, "qwen-tiny"): quarters[2],
        (2, "llama-tiny"): quarters[2],
        (3, "qwen-tiny"): quarters[1],
        (3, "llama-tiny"): quarters[4],
        (4, "qwen-tiny"): quarters[4],
    }
    team = evaluated(tmp_path / "team", accuracies, num=2)
    # step 3 has (.25 + 1) / 2, steps 1 and 2 both have .5, step 4 lacks an agent, and step 0 has no checkpoint
    assert list(best_steps(team.root, team.config).items()) == [(3, 0.625), (1, 0.5)]


def test_unknown_accuracy_leaves_the_order_of_the_others(tmp_path: Path) -> None:
    values = {1: 0.0, 2: float("nan"), 3: 1.0, 4: float("nan"), 5: 0.5}
    agents = ("qwen-tiny", "llama-tiny")
    plan = evaluated(tmp_path, {(step, k): [value, value] for step, value in values.items() for k in agents}, num=3)
    assert list(best_steps(plan.root, plan.config)) == [3, 5, 1]


@pytest.mark.slow
def test_checkpoints_of_the_best_steps_stay_beside_the_newest(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=5", "checkpoint.every=5", "checkpoint.keep_best.num=2", *KEPT)
    run_experiment(planned, DirectRunner())
    values: dict[int, float] = {}
    for result in results(planned.root):
        if result.benchmark == "dev" and result.step:
            values[result.step] = values.get(result.step, 0.0) + result.value
    best = sorted(values, key=lambda step: (-values[step], step))[:2]
    assert set(checkpoint_steps(planned.root)) == {5, *best}
