"""A training that ends when its accuracy has stopped rising."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.commands.train import train_planned
from flows.planning.plans import Plan
from flows.records.progress import read_progress
from flows.runs.experiment import run_experiment
from flows.runs.extend import why_not_extended
from flows.runs.results import read_final
from hacpo_core.config.schema import StopConfig
from hacpo_core.evaluation.results import results
from hacpo_core.evaluation.stopping import last_step
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.checkpoints import checkpoint_steps
from tests.dashboards.report.finished import AGENTS, finished

TEST = "arithmetic_test"
METRICS = {"tokens/sampled": 1.0, "tokens/trained": 1.0, "reward/mean": 0.5}
STOPPED = (
    *("train.num_steps=6", "train.stop.metric=dev", "train.stop.patience=1", "checkpoint.every=6"),
    *("evaluate.during=[dev]", "evaluate.every=1", "evaluate.final=[dev,test]"),
)


def evaluated(folder: Path, rewards: Mapping[tuple[int, str, str], list[list[float]]]) -> Plan:
    """An experiment that is evaluated after every tenth step."""
    plan = finished(folder, "hacpo", rewards=rewards, metrics=METRICS)
    evaluate = replace(plan.config.evaluate, during=[TEST], every=10)
    return replace(plan, config=replace(plan.config, evaluate=evaluate))


@pytest.mark.parametrize(
    ("quarters", "patience", "expected"),
    [
        ([1, 2, 2, 3, 3], 1, 20),  # the second 2 is no new best
        ([1, 2, 2, 3, 3], 2, 100),  # a new best in between
        ([1, 2, 2, 3, 3, 1], 2, 50),
        ([2, 1, 1], 2, 20),  # the score before training counts
        ([1, 2], 1, 100),
        ([], 1, 100),
    ],
)
def test_patience_counts_evaluations_without_a_new_best(
    quarters: Sequence[int], patience: int, expected: int, tmp_path: Path
) -> None:
    rewards = {
        (10 * at, TEST, agent): [[1.0]] * n + [[0.0]] * (4 - n) for at, n in enumerate(quarters) for agent in AGENTS
    }
    plan = evaluated(tmp_path, rewards)
    train = replace(plan.config.train, num_steps=100, stop=StopConfig(metric=TEST, patience=patience))
    assert last_step(plan.root, replace(plan.config, train=train)) == expected
    never = replace(train, stop=StopConfig())
    assert last_step(plan.root, replace(plan.config, train=never)) == 100


def test_evaluation_between_those_of_the_training_does_not_count(tmp_path: Path) -> None:
    quarters = {0: 1, 5: 4, 10: 2, 20: 3}
    rewards = {(step, TEST, agent): [[1.0]] * n + [[0.0]] * (4 - n) for step, n in quarters.items() for agent in AGENTS}
    plan = evaluated(tmp_path, rewards)
    train = replace(plan.config.train, num_steps=100, stop=StopConfig(metric=TEST, patience=1))
    assert last_step(plan.root, replace(plan.config, train=train)) == 100, "step 5 would have been the best"


def of_one_length(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Have the accuracy stop rising at a step, whatever the small models do."""

    def stopped(root: Path, config: object) -> int:
        evaluated = [result.step for result in results(root) if result.benchmark == "dev"]
        return last if evaluated.count(last) == 2 else 6

    stopping = "hacpo_core.evaluation.stopping"
    for module in ("flows.runs.experiment", "flows.runs.results", "flows.records.watcher", stopping):
        monkeypatch.setattr(f"{module}.last_step", stopped)


@pytest.mark.slow
def test_stopped_training_is_complete_with_its_final_evaluation_and_checkpoint(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = small_plan("hacpo", *STOPPED)
    of_one_length(monkeypatch, 3)
    done = run_experiment(planned, DirectRunner())
    assert done.table[0]["test_after"] is not None and read_final(planned.root) is not None
    assert {result.step for result in results(planned.root) if result.benchmark == "test"} == {0, 3}
    assert checkpoint_steps(planned.root) == [3]
    progress = read_progress(planned.root)
    assert progress is not None and (progress.step, progress.num_steps) == (3, 3)
    assert "train.stop ends it" in str(why_not_extended(planned, 9))
    train_planned(planned)
    assert "ended   after step 3 of 6: no new best accuracy on dev" in capsys.readouterr().out


@pytest.mark.slow
def test_training_that_is_killed_before_its_final_evaluation_ends_at_the_same_step(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_one_length(monkeypatch, 3)
    expected = run_experiment(small_plan("hacpo", *STOPPED, runs_dir=tmp_path / "whole"), DirectRunner())
    planned = small_plan("hacpo", *STOPPED, runs_dir=tmp_path / "killed")
    with pytest.MonkeyPatch.context() as patch:

        def killed(*_: object) -> list[str]:
            raise KeyboardInterrupt

        patch.setattr("flows.runs.experiment._missing_names", killed)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(planned, DirectRunner())
    assert run_experiment(planned, DirectRunner()).digests == expected.digests
    assert {result.step for result in results(planned.root) if result.benchmark == "test"} == {0, 3}
