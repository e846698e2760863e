"""GDPO: reward functions that are normalised each over its group.

Shapes: R response, F reward function.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.methods.base import ScoredStep
from hacpo_core.methods.estimators.decoupled import Decoupled
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import Verdict
from hacpo_core.responses import Verdicts
from hacpo_core.store.steps import StepStore
from tests.rollouts import Rollout, responses_of

WEIGHTS = (1.0, 0.25)


def step_of(parts_RF: NDArray[np.float64], *, num_samples: int, weights: tuple[float, ...] = WEIGHTS) -> ScoredStep:
    """One agent's responses, problem by problem; a row of nan is unscored."""
    rollouts = [
        Rollout(str(row // num_samples), "a", row % num_samples, (1,), (2,), (-1.0,), None, "", "stop")
        for row in range(len(parts_RF))
    ]
    verdicts = [
        Verdict("unscored", None, None, 0.0)
        if np.isnan(parts).any()
        else Verdict("partial", float(np.average(parts, weights=weights)), None, 0.0, parts=tuple(parts.tolist()))
        for parts in parts_RF
    ]
    responses = replace(responses_of(rollouts), verdicts=Verdicts.of(verdicts))
    problems = tuple(dict.fromkeys(responses.problem_id))
    return ScoredStep(1, problems, {"a": responses}, 0, reward_weights=weights)


def advantages(step: ScoredStep) -> NDArray[np.float64]:
    estimate, state = Decoupled().estimate(step, {})
    assert state == {}
    return estimate.carried["a"]["a"].advantage_R


def by_loops(parts_RF: NDArray[np.float64], num_samples: int, weights: Sequence[float]) -> list[float]:
    """The same from lists: TRL's normalize_then_sum with the project's epsilon."""
    added = [0.0] * len(parts_RF)
    for f, weight in enumerate(weights):
        for start in range(0, len(parts_RF), num_samples):
            group = parts_RF[start : start + num_samples, f].tolist()
            for i, reward in enumerate(group):
                added[start + i] += weight * (reward - statistics.mean(group)) / (statistics.stdev(group) + 1e-6)
    return [(a - statistics.mean(added)) / (statistics.stdev(added) + 1e-6) for a in added]


@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_those_of_plain_loops(seed: int) -> None:
    parts_RF = np.random.default_rng(seed).random((12, 3))
    weights = (1.0, 0.5, 2.0)
    found = advantages(step_of(parts_RF, num_samples=4, weights=weights))
    assert found == pytest.approx(by_loops(parts_RF, 4, weights), abs=1e-10)


def test_groups_whose_weighted_means_are_standardised_alike_are_told_apart() -> None:
    parts_RF = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    found = advantages(step_of(parts_RF, num_samples=2, weights=(1.0, 1.0)))
    # sqrt(1/2) of one function, twice that of both; divided by sqrt(5/3). GRPO gives both groups +-sqrt(1/2).
    assert found.tolist() == pytest.approx([0.5477226, -0.5477226, 1.0954451, -1.0954451], abs=5e-6)


def test_groups_in_which_no_function_ranks_keep_zero_and_unscored_rows_are_left_out() -> None:
    parts_RF = np.array([[1.0, 0.5]] * 3 + [[1.0, 0.5], [0.0, 0.5], [np.nan, np.nan]])
    found = advantages(step_of(parts_RF, num_samples=3))
    assert found[[0, 1, 2, 5]].tolist() == [0.0] * 4
    assert found[3] == -found[4] > 0


def test_one_function_is_normalised_over_its_groups_and_the_batch() -> None:
    step = step_of(np.array([[1.0], [0.0], [0.0], [1.0], [1.0], [0.0]]), num_samples=3, weights=(1.0,))
    assert advantages(step) == pytest.approx(by_loops(np.array([[1.0], [0.0], [0.0], [1.0], [1.0], [0.0]]), 3, [1.0]))


@pytest.mark.slow
def test_run_stores_the_reward_of_each_function(small_plan: Callable[..., Plan]) -> None:
    words = ("train.num_steps=2", "evaluate.during=[]", "evaluate.final=[]", "verifier.max_unscored_fraction=1")
    functions = "reward.functions=[verifier,tests.plugins:brevity]"
    planned = small_plan("gdpo", *words, functions, "reward.weights=[1,0.5]")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    table = store.read_table(1, "verify.qwen", "verdicts.qwen.parquet")
    parts_RF = np.stack(table["parts"].to_list())
    is_scored_R = table["raw_reward"].notna().to_numpy()
    assert 0 < is_scored_R.sum() < len(table), "brevity judges no problem with a 5"
    np.testing.assert_allclose(
        parts_RF[is_scored_R] @ [1.0, 0.5] / 1.5, table["raw_reward"][is_scored_R].to_numpy(), rtol=1e-12
    )
    carried = store.read_table(1, "advantage", "advantages.parquet")
    own = carried[(carried.learner == "qwen") & (carried.agent == "qwen")]["advantage"].to_numpy()
    assert own[is_scored_R].std(ddof=1) == pytest.approx(1.0, abs=1e-3)
