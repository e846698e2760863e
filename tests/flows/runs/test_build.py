"""An experiment of `engine.num_threads: auto` keeps the number of threads with which it started."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flows.planning.plans import Plan
from flows.runs import experiment as experiment_module
from flows.runs.build import THREADS_FILE, with_threads
from flows.runs.experiment import run_experiment
from hacpo_core.config import threads
from hacpo_core.config.threads import SLOTS
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.files import read_json
from hacpo_core.store.steps import REPLAYS_FILE
from tests.experiments_outcome import finish, outcome

AUTO = ("engine.num_threads=auto", "evaluate.final=[]", "evaluate.during=[]")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threads, "CPU_LIMIT", Path("/nowhere"))
    monkeypatch.delenv(SLOTS, raising=False)


def test_number_of_the_start_stays_and_is_no_larger_than_the_machine(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = small_plan("gspo", *AUTO)
    assert plan.config.engine.num_threads == "auto"
    assert with_threads(plan.config, plan.root).engine.num_threads == 2
    monkeypatch.setenv(SLOTS, "2")
    assert with_threads(plan.config, plan.root).engine.num_threads == 2
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0})
    assert with_threads(plan.config, plan.root).engine.num_threads == 1
    assert read_json(plan.root / THREADS_FILE) == {"num_threads": 2}
    (plan.root / THREADS_FILE).write_text("{")
    with caplog.at_level(logging.WARNING):
        assert with_threads(plan.config, plan.root).engine.num_threads == 1
    assert "threads.json is damaged" in caplog.text
    assert read_json(plan.root / THREADS_FILE) == {"num_threads": 1}


def test_a_number_of_the_configuration_is_taken_as_it_is(small_plan: Callable[..., Plan]) -> None:
    plan = small_plan("gspo", "engine.num_threads=3")
    assert with_threads(plan.config, plan.root) is plan.config
    assert not (plan.root / THREADS_FILE).exists()
    assert len({small_plan("gspo", word).id for word in ("engine.num_threads=1", "engine.num_threads=3", AUTO[0])}) == 3


def stopped_before_the_last_step(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = experiment_module.train_step

    def step(experiment: object, number: int, runner: object) -> None:
        if number == 4:  # the checkpoint is that of step 2, so a resumed run repeats step 3
            raise KeyboardInterrupt
        inner(experiment, number, runner)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(experiment_module, "train_step", step)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(plan, DirectRunner())


@pytest.mark.slow
def test_resume_in_a_grid_with_more_slots_has_the_same_bits(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = finish(small_plan("gspo", *AUTO, runs_dir=tmp_path / "undisturbed"))
    assert torch.get_num_threads() == 2
    plan = small_plan("gspo", *AUTO)
    stopped_before_the_last_step(plan, monkeypatch)
    monkeypatch.setenv(SLOTS, "2")
    assert finish(plan) == expected
    assert torch.get_num_threads() == 2
    assert {replay["kind"] for replay in read_json(plan.root / REPLAYS_FILE)} == {"exact"}


@pytest.mark.slow
def test_resume_with_fewer_cores_is_near_and_no_error(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan("gspo", *AUTO)
    stopped_before_the_last_step(plan, monkeypatch)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0})
    found = finish(plan)
    assert torch.get_num_threads() == 1
    assert found == outcome(plan)
    assert {replay["kind"] for replay in read_json(plan.root / REPLAYS_FILE)} <= {"near", "exact"}
