"""What a grid command waits for, with a schedule that is made up."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows.grids import watch as watching
from flows.grids.watch import watch
from flows.planning.plans import Plan
from flows.records.failures import record_failure
from flows.runs.experiment import run_experiment
from flows.service.experiment_state import ScheduledRun
from hacpo_core.errors import EngineError, ServerError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.lock import ExperimentLock


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "ASK_EVERY_S", -1.0)
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 0.0)


@dataclass
class FakeSchedule:
    """Answers with prepared states of the experiment's newest flow run, one after the other."""

    plan: Plan
    answers: list[Callable[[], str | None]]
    started: list[str] = field(default_factory=list)
    num_starts: int = 0

    def runs(self) -> dict[str, ScheduledRun]:
        state = self.answers.pop(0)()
        run = ScheduledRun(str(self.num_starts), self.plan.id, state or "", "")
        return {} if state is None else {self.plan.id: run}

    def start(self, experiment: str) -> ScheduledRun:
        self.started.append(experiment)
        self.num_starts += 1
        return ScheduledRun(str(self.num_starts), experiment, "Scheduled", "")


def trained(plan: Plan) -> Callable[[], str]:
    def train() -> str:
        run_experiment(plan, DirectRunner())
        return "Completed"

    return train


def watched(schedule: FakeSchedule) -> dict[str, str]:
    return watch([schedule.plan], schedule, lambda: schedule, lambda: None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_grid_queues_an_experiment_whose_process_was_left_over_by_a_cancelled_run(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    """An earlier command cancelled the run, and its process ends only while this command waits."""
    plan = small_plan("gspo", "train.num_steps=1", runs_dir=tmp_path)
    with ExitStack() as leftover:
        leftover.enter_context(ExperimentLock(plan.root))

        def ends() -> str:
            leftover.close()
            return "Cancelled"

        schedule = FakeSchedule(plan, [lambda: "Cancelled", ends, lambda: "Running", trained(plan)])
        assert watched(schedule) == {}
    assert schedule.started == [schedule.plan.id], "once"


@pytest.mark.slow
def test_grid_queues_an_experiment_that_a_killed_command_trained(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = small_plan("gspo", "train.num_steps=1", runs_dir=tmp_path)
    schedule = FakeSchedule(plan, [lambda: None, trained(plan)])
    assert watched(schedule) == {}
    assert schedule.started == [schedule.plan.id]


def test_grid_reports_an_experiment_that_is_cancelled_while_it_waits(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = small_plan("gspo", runs_dir=tmp_path)
    schedule = FakeSchedule(plan, [lambda: "Running", lambda: "Cancelled"])
    assert watched(schedule) == {plan.id: "cancelled"}
    assert schedule.started == []


def test_grid_leaves_a_crashed_run_to_the_reconciler(small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """Whether it crashed before the command came or while it waited; what the folder says then counts."""
    plan = small_plan("gspo", runs_dir=tmp_path)

    def given_up() -> str:
        record_failure(plan.root, EngineError("its process died, 4 times"))
        return "Crashed"

    schedule = FakeSchedule(plan, [lambda: "Crashed", lambda: "Running", lambda: "Crashed", given_up])
    assert watched(schedule) == {plan.id: "EngineError: its process died, 4 times"}
    assert schedule.started == []


def test_grid_does_not_wait_for_an_experiment_whose_folder_is_deleted(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = small_plan("gspo", runs_dir=tmp_path)

    def deleted() -> None:
        shutil.rmtree(plan.root)

    assert watched(FakeSchedule(plan, [deleted])) == {plan.id: "its folder was deleted"}


@pytest.mark.slow
def test_grid_outlives_a_silent_server(small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    plan = small_plan("gspo", "train.num_steps=1", runs_dir=tmp_path)

    def is_silent() -> str:
        raise ServerError("the Prefect server does not answer")

    assert watched(FakeSchedule(plan, [is_silent, trained(plan)])) == {}
