"""What the ledger commits it reads back as it was, also where a whole column has no values."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hacpo_core.engines.learning.outcomes import MinibatchOutcome, UpdateOutcome
from hacpo_core.engines.learning.replay import Setup, UpdateTrace
from hacpo_core.engines.learning.weights import Fingerprint
from hacpo_core.methods.build import ROW_FIGURES, TrainedRows
from hacpo_core.methods.estimate import Estimate
from hacpo_core.records import PhaseCost, RowKey, Verdict
from hacpo_core.responses import Responses
from hacpo_core.store.ledger import Committed, Ledger, UpdateRecord
from hacpo_core.store.steps import StepStore
from tests.rollouts import Rollout, responses_of

COST = PhaseCost(0.5, 0.25, 7)
ROLLOUT = Rollout("p", "qwen", 0, (1, 2), (5, 6, 7), (-0.5, -0.25, -1.0), "a", "stop")
TAGGED = replace(ROLLOUT, index=2, tag="search", prompt_ids=(3,))
EMPTY = replace(ROLLOUT, index=3, token_ids=(), logprobs=(), text="", finish_reason="length")
RIGHT, WRONG = Verdict("correct", 1.0, "4", 0.5), Verdict("wrong", 0.0, None, 0.25)
UNSCORED = Verdict("unscored", None, None, 0.25, "timeout")
MINIBATCH = MinibatchOutcome(0, 0.5, -0.25, 1.5, 1e-6, 4, 1, 12)
TRACE = UpdateTrace(
    Fingerprint("a", (0.1, -2.5e-7)), Fingerprint("b", (0.3, 1e300)), Setup("a GPU", 2, 0, "2.13.0", is_exact=False)
)
STATE = {"window": {"qwen": [0.25, 0.5]}}


def two_ledgers(folder: Path) -> tuple[Ledger, Ledger]:
    """One that writes, and one of a process that comes later."""
    return Ledger(StepStore(folder), ["qwen"]), Ledger(StepStore(folder), ["qwen"])


def plain(value: Any) -> Any:
    """Columns as lists, so that two records can be compared; nan as None."""
    if isinstance(value, pd.DataFrame):
        return {str(name): plain(value[name].to_numpy()) for name in value.columns}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return [str(value.dtype), [None if x != x else x for x in value.tolist()]]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("rollouts", [(ROLLOUT,), (ROLLOUT, TAGGED), (ROLLOUT, EMPTY), (EMPTY,)])
def test_rollouts_are_read_as_they_were_sampled(rollouts: tuple[Rollout, ...], tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    responses = replace(responses_of(rollouts), verdicts=None, sampler_figures={"vllm/cache_tokens": 640.0})
    batch = Committed(responses, COST, STATE)
    before.save_rollouts(1, "qwen", batch)
    assert plain(after.rollouts(1, "qwen")) == plain(batch)
    assert after.state(1, "rollout.qwen") == STATE


BY_FUNCTION = replace(RIGHT, parts=(1.0, 0.25)), replace(WRONG, parts=(0.0, 0.5))


@pytest.mark.parametrize(
    "verdicts", [(RIGHT, WRONG), (UNSCORED, UNSCORED), (RIGHT, UNSCORED), (WRONG, WRONG), BY_FUNCTION]
)
def test_verdicts_are_read_as_they_were_given_with_their_responses(
    verdicts: tuple[Verdict, ...], tmp_path: Path
) -> None:
    before, after = two_ledgers(tmp_path)
    responses = replace(responses_of([ROLLOUT, replace(ROLLOUT, index=1)]), verdicts=None)
    before.save_rollouts(1, "qwen", Committed(responses, COST))
    batch = Committed(replace(responses, verdicts=verdicts), COST)
    before.save_verdicts(1, "qwen", batch)
    assert plain(after.verdicts(1, "qwen")) == plain(batch)


def test_rounds_are_read_as_one_and_a_round_that_is_sampled_again_outdates_later_ones(tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    first = replace(responses_of([ROLLOUT, replace(ROLLOUT, index=1)]), verdicts=None)
    first = replace(first, sampler_figures={"vllm/preemptions": 3.0, "time/vllm_waiting_s": 0.5})
    second = replace(responses_of([replace(ROLLOUT, index=2)]), verdicts=None)
    second = replace(second, sampler_figures={"vllm/preemptions": 1.0, "time/vllm_waiting_s": 0.75})
    rounds = [(first, (RIGHT, WRONG)), (Responses.none(1, "qwen"), ()), (second, (UNSCORED,))]
    for n, (responses, verdicts) in enumerate(rounds):
        before.save_rollouts(1, "qwen", Committed(responses, COST), n)
        judged = replace(responses, verdicts=verdicts)
        before.save_verdicts(1, "qwen", Committed(judged, COST), n)
    for ledger in (before, after):
        sampled, verified = ledger.rollouts(1, "qwen"), ledger.verdicts(1, "qwen")
        assert sampled.cost == PhaseCost.total([COST] * 3)
        assert verified.value.sample_R.tolist() == [0, 1, 2]
        assert sampled.value.sampler_figures == {"vllm/preemptions": 3.0, "time/vllm_waiting_s": 0.75}
        assert verified.value.verdicts == (RIGHT, WRONG, UNSCORED)
        assert len(ledger.verdicts(1, "qwen", rounds=1).value) == 2
    before.save_rollouts(1, "qwen", Committed(second, COST), 1)
    assert before.store.committed(1) == ("rollout.qwen", "verify.qwen", "rollout-2.qwen")


def test_estimate_is_read_as_it_was_made(tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    responses = replace(responses_of([ROLLOUT, replace(ROLLOUT, index=1)]), verdicts=None)
    before.save_rollouts(1, "qwen", Committed(responses, COST))
    advantages, weights = ({"qwen": {"qwen": np.array(column)}} for column in ([0.5, -1e-300], [1.0, 2.0]))
    reward_R = {"qwen": np.array([0.25, np.nan])}
    estimated = Committed(Estimate(advantages, weights, {"qwen": {"a/b": 0.1}}, {"c/d": 2.0}), COST, STATE)
    before.save_estimate(1, estimated, reward_R)
    assert plain(after.estimate(1)) == plain(estimated)
    rewards = after.store.read_table(1, "advantage", "advantages.parquet")["reward"].to_numpy()
    np.testing.assert_array_equal(rewards, reward_R["qwen"])
    assert after.state(1, "advantage") == STATE


@pytest.mark.parametrize("num_rows", [0, 2])
def test_update_is_read_as_it_was_made(num_rows: int, tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    keys = (RowKey(1, "qwen", "p", 0), RowKey(0, "llama", "q", 3))
    integer_B, number_B = np.arange(2)[:num_rows], np.array([np.nan, 1.5])[:num_rows]
    figures = dict.fromkeys((*ROW_FIGURES, "mine"), number_B)
    rows = TrainedRows(keys[:num_rows], integer_B, integer_B, number_B, number_B, integer_B, figures)
    built, means = {"text/length_drift": 0.5}, {"llama": [-1.5, -0.5]}
    outcome = UpdateOutcome((MINIBATCH,), rows, {"llama": -1.0}, means)
    record = UpdateRecord(outcome, TRACE, built, STATE, COST)
    before.save_update(1, "qwen", record)
    assert plain(after.update(1, "qwen")) == plain(record)
    assert after.state(1, "update.qwen") == STATE
    assert after.state(1, "objective.qwen") == means
