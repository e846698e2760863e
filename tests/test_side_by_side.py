"""Phases in threads: who waits for whom, and what a failure breaks off."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import hacpo_core.algorithm as algorithm
from hacpo_core.algorithm import finish_step, train_step
from hacpo_core.phases.runner import DirectRunner, Phase
from hacpo_core.side_by_side import BrokenOffError, SideBySideRunner

PATIENCE_S = 20.0


def test_phases_that_need_nothing_of_each_other_run_at_the_same_time() -> None:
    runner, meeting = SideBySideRunner(DirectRunner()), threading.Barrier(2)
    handles = [runner.start(Phase("rollout", 1, k), lambda: meeting.wait(PATIENCE_S)) for k in "ab"]  # type: ignore[arg-type, return-value]
    for handle in handles:
        handle.result()


def test_phase_begins_when_everything_before_it_is_done() -> None:
    runner, order, gate = SideBySideRunner(DirectRunner()), list[str](), threading.Event()

    def slow() -> None:
        gate.wait(PATIENCE_S)
        order.append("slow")

    first = runner.start(Phase("rollout", 1, "a"), slow)
    second = runner.start(Phase("rollout", 1, "b"), lambda: order.append("fast"))
    last = runner.start(Phase("advantage", 1), lambda: order.append("both"), after=[first, second])
    second.result()
    gate.set()
    last.result()
    assert order == ["fast", "slow", "both"]


def test_failure_breaks_off_what_follows_and_lets_what_has_begun_end() -> None:
    runner, done = SideBySideRunner(DirectRunner()), list[str]()
    gate, has_begun = threading.Event(), threading.Event()

    def fail() -> None:
        has_begun.wait(PATIENCE_S)
        raise ZeroDivisionError

    def long() -> None:
        has_begun.set()
        gate.wait(PATIENCE_S)
        done.append("long")

    failing, running = runner.start(Phase("rollout", 1, "a"), fail), runner.start(Phase("rollout", 1, "b"), long)
    after_failure = runner.start(Phase("verify", 1, "a"), lambda: done.append("verify a"), after=[failing])
    after_running = runner.start(Phase("verify", 1, "b"), lambda: done.append("verify b"), after=[running])
    with pytest.raises(ZeroDivisionError):
        after_failure.result()
    gate.set()
    runner.wait()
    with pytest.raises(BrokenOffError, match=r"step 1, verify.b: another phase failed before it began"):
        after_running.result()
    assert isinstance(runner.failure, ZeroDivisionError)
    assert done == ["long"]


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_pipelined_agent_samples_while_another_one_still_updates(
    monkeypatch: pytest.MonkeyPatch, is_pipelined: bool
) -> None:
    has_sampled, was_early = threading.Event(), list[bool]()

    def rollout(_x: Any, step: int, k: str, _problems: Any) -> None:
        if (step, k) == (2, "fast"):
            has_sampled.set()

    def update(_x: Any, step: int, k: str) -> None:
        if (step, k) == (1, "slow"):
            was_early.append(has_sampled.wait(PATIENCE_S if is_pipelined else 0.2))

    for name, stub in {"rollout": rollout, "update": update}.items():
        monkeypatch.setattr(algorithm, name, stub)
    for name in ("verify", "advantage", "metrics"):
        monkeypatch.setattr(algorithm, name, lambda *_: None)
    config = SimpleNamespace(train=SimpleNamespace(problems=1), seed=0)
    x: Any = SimpleNamespace(problems=["one"], config=config, names=("fast", "slow"))
    runner = SideBySideRunner(DirectRunner())
    first = train_step(x, 1, runner)
    if not is_pipelined:
        finish_step(x, first)
    second = train_step(x, 2, runner, before=first)
    for started in (first, second):
        finish_step(x, started)
    assert was_early == [is_pipelined]
