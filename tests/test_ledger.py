"""What the ledger commits it reads back as it was, also where a whole column has no values."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hacpo_core.batches import BatchCounts
from hacpo_core.engines.base import RowOutcome, UpdateOutcome
from hacpo_core.engines.replay import Setup, UpdateTrace
from hacpo_core.engines.weights import Fingerprint
from hacpo_core.errors import StoreError
from hacpo_core.ledger import Ledger, SampledBatch, UpdateRecord, VerifiedBatch
from hacpo_core.records import Gold, Message, PhaseCost, Problem, Rollout, Verdict
from hacpo_core.store import StepStore

COST = PhaseCost(0.5, 0.25, 7)
ROLLOUT = Rollout("p", "qwen", 0, "transformers", 3, (1, 2), (5, 6, 7), (-0.5, -0.25, -1.0), None, "a", "stop")
SCORED = replace(ROLLOUT, index=1, old_logprobs=(-0.5, -0.125, -1.0))
EMPTY = replace(ROLLOUT, index=2, token_ids=(), logprobs=(), text="", finish_reason="length")
RIGHT, WRONG = Verdict("correct", 1.0, "4", 0.5), Verdict("wrong", 0.0, None, 0.25)
UNSCORED = Verdict("unscored", None, None, 0.25, "timeout")
ROW = RowOutcome(0, 0, 1, True, 0, 0.5, 1.0, float("nan"), 0.75, 1.25, 0.0, 0.0, 0.5, 12)

TRACE = UpdateTrace(
    Fingerprint("a", (0.1, -2.5e-7)), Fingerprint("b", (0.3, 1e300)), Setup("a GPU", 2, 0, "2.13.0", is_exact=False)
)


def two_ledgers(folder: Path) -> tuple[Ledger, Ledger]:
    """One that writes, and one of a process that comes later."""
    return Ledger(StepStore(folder), ["qwen"]), Ledger(StepStore(folder), ["qwen"])


@pytest.mark.parametrize("rollouts", [(ROLLOUT,), (SCORED,), (ROLLOUT, SCORED, EMPTY), (EMPTY,)])
def test_rollouts_are_read_as_they_were_sampled(rollouts: tuple[Rollout, ...], tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    before.save_rollouts(1, "qwen", SampledBatch(rollouts, COST, {0: (-0.5,)}, recomputes_own=True))
    assert after.rollouts(1, "qwen") == SampledBatch(rollouts, COST, {0: (-0.5,)}, recomputes_own=True)


@pytest.mark.parametrize("verdicts", [(RIGHT, WRONG), (UNSCORED, UNSCORED), (RIGHT, UNSCORED), (WRONG, WRONG)])
def test_verdicts_are_read_as_they_were_given(verdicts: tuple[Verdict, ...], tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    problem = Problem("p", (Message("user", "2 + 2?"),), Gold("4"), "s")
    before.save_verdicts(1, "qwen", [problem], VerifiedBatch(verdicts, COST))
    assert after.verdicts(1, "qwen") == VerifiedBatch(verdicts, COST)


@pytest.mark.parametrize("rows", [(), (ROW, replace(ROW, index=2))])
def test_update_is_read_as_it_was_made(rows: tuple[RowOutcome, ...], tmp_path: Path) -> None:
    before, after = two_ledgers(tmp_path)
    record = UpdateRecord(UpdateOutcome((), rows), TRACE, BatchCounts(1, 2, 3, 0.5, 4), COST)
    before.save_update(1, "qwen", record)
    assert repr(after.update(1, "qwen")) == repr(record), "nan is not equal to itself"


def test_update_of_an_earlier_version_is_one_clear_error(tmp_path: Path) -> None:
    ledger, _ = two_ledgers(tmp_path)
    outputs = {"update.qwen.json": {"minibatches": [], "digest": "ab" * 32, "cost": asdict(COST)}}
    ledger.store.commit(3, "update.qwen", outputs)
    with pytest.raises(StoreError, match="step 3, qwen: the update was recorded by an earlier version of hacpo"):
        ledger.update(3, "qwen")
