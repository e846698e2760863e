"""The figures that every step logs."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.methods.build import ROW_FIGURES, TrainedRows
from hacpo_core.methods.objective import RowKind
from hacpo_core.phases.definitions import DEFINITIONS, definition
from hacpo_core.phases.metrics import _sampler_metrics
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import RowKey
from hacpo_core.store.steps import StepStore


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_definition_is_that_of_its_own_metric(name: str) -> None:
    metric = name.replace("<k>", "30").replace("<benchmark>", "math500").replace("<agent>", "qwen")
    assert definition(metric.replace("<source>", "own")) == DEFINITIONS[name]


def test_sampler_is_told_by_its_drift_and_by_what_a_weight_by_sequence_would_leave() -> None:
    """Two own responses of 100 tokens with weights e and 1/e, and a foreign one that does not count."""
    numbers = {name: np.zeros(3) for name in ROW_FIGURES}
    numbers |= {"sampler_bias": np.array([0.01, -0.01, 9.0]), "sampler_difference": np.array([0.02, 0.04, 9.0])}
    kinds, zeros = np.array([RowKind.OWN, RowKind.OWN, RowKind.FOREIGN]), np.zeros(3, np.int64)
    keys = tuple(RowKey(1, "a", "p", n) for n in range(3))
    rows = TrainedRows(keys, kinds, zeros, np.ones(3), np.ones(3), np.array([100, 100, 5]), numbers)
    found = _sampler_metrics(rows, kinds == RowKind.OWN)
    assert found["sampler/logprob_difference_mean"] == pytest.approx(0.03)
    assert found["sampler/logprob_bias_mean"] == pytest.approx(0.0, abs=1e-12)
    e = math.e
    assert found["sampler/effective_share"] == pytest.approx((e + 1 / e) ** 2 / (2 * (e**2 + e**-2)))


@pytest.mark.slow
def test_clip_shares_of_a_token_level_method_are_of_tokens(small_plan: Callable[..., Plan]) -> None:
    words = ("train.num_steps=1", "train.problems=16", "evaluate.during=[]", "evaluate.final=[]")
    words += ("method.build.problems=1", "engine.skip_zero_advantage=false", "optimizer.learning_rate=1e-2")
    planned = small_plan("grpo", *words, "method.objective.token_low=0.001", "method.objective.token_high=0.001")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    values, rows = store.metrics(1)["agents"]["qwen"], store.read_table(1, "update.qwen", "update.qwen.parquet")
    for share in ("below_share", "above_share"):
        assert values[f"clip_own/{share}"] == pytest.approx(rows[share].mean())
        assert rows[share].between(0, 1, inclusive="neither").any(), "a part of a row's tokens"
    is_stopped = rows["stopped_share"] > 0
    assert (rows["stopped_share"] <= rows["below_share"] + rows["above_share"])[is_stopped].all()


def test_share_of_masked_rows_is_logged_and_no_cut_row_is_trained(small_plan: Callable[..., Plan]) -> None:
    words = ("train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]", "rollout.max_response_tokens=16")
    planned = small_plan("hacpo", *words, "method.objective.mask_truncated=all", "engine.skip_zero_advantage=false")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    rollouts = {name: store.read_table(1, f"rollout.{name}", f"rollouts.{name}.parquet") for name in ("qwen", "llama")}
    cut = {
        (name, row.problem_id, row.sample)
        for name, table in rollouts.items()
        for row in table[table["finish_reason"] == "length"].itertuples()
    }
    num_rows = sum(map(len, rollouts.values()))
    assert 0 < len(cut) < num_rows
    rows = store.read_table(1, "update.qwen", "update.qwen.parquet")
    trained = set(zip(rows["agent"], rows["problem_id"], rows["sample"], strict=True))
    assert trained.isdisjoint(cut)
    # a row that is whole at its source may be longer than two of the learner's tokens
    values = store.metrics(1)["agents"]["qwen"]
    assert values["update/masked_share"] == pytest.approx(1 - len(trained) / num_rows, abs=1e-12)
    assert "update/masked_share" not in store.metrics(1)["run"]


@pytest.mark.slow
def test_rate_of_a_cosine_is_above_zero_until_the_last_step_though_problems_are_sampled_again(
    small_plan: Callable[..., Plan],
) -> None:
    words = ("evaluate.during=[]", "evaluate.final=[]", "optimizer.schedule=cosine", "optimizer.learning_rate=1.0e-3")
    planned = small_plan("dapo", *words, "method.build.drops_equal_rewards=false")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    updates = [store.read_value(step, "update.qwen", "update.qwen.json")["minibatches"] for step in range(1, 5)]
    assert sum(map(len, updates)) > 8, "more than the 2 of each step that are planned"
    firsts = [minibatches[0]["learning_rate"] for minibatches in updates]
    # 1e-3 (1 + cos of 0, pi / 4, pi / 2, 3 pi / 4) / 2
    assert firsts == pytest.approx([1e-3, 0.8535534e-3, 0.5e-3, 0.1464466e-3], rel=1e-6)
    assert updates[-1][-1]["learning_rate"] > 0
