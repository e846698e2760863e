"""What the reconciler makes of each state of a flow run and of its experiment's folder; nothing real is killed here."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType

from flows.planning.plans import Plan
from flows.records.failures import FAILURE_FILE, record_failure
from flows.records.mlflow_address import has_unsent, mark_unsent
from flows.records.states import CONFIG_FILE, RESULT_FILE, experiment_status
from flows.runs.experiment import run_experiment
from flows.service.host import HostProcesses, Timeouts
from flows.service.reconciler import MAX_RESTARTS, Reconciler, reconcile_once
from hacpo_core.config import TrackingConfig
from hacpo_core.errors import ServerError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.lock import ExperimentLock
from tests.experiments_outcome import mlflow_points

AT_ONCE, LATER = Timeouts(pending_s=0.0, running_s=0.0), Timeouts(pending_s=60.0, running_s=60.0)


@dataclass
class FakeSchedule:
    """One flow run of experiment "x"; remembers what is done to it."""

    folder: Path
    run: FlowRun
    history: list[str] = field(default_factory=lambda: ["SCHEDULED", "PENDING", "RUNNING"])
    states: list[str] = field(default_factory=list)
    submitted: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = SimpleNamespace(
            api_url="http://127.0.0.1:9/api",
            set_flow_run_state=self._set,
            read_flow_runs=lambda **_: [],
            read_flow_run_states=lambda _: [State(type=StateType(state)) for state in self.history],
        )

    def root(self, experiment: str) -> Path:
        return self.folder / "experiments" / experiment

    def flow_runs(self) -> dict[str, FlowRun]:
        return {"x": self.run}

    def _set(self, run_id: Any, state: State[Any], *, force: bool) -> None:
        assert force
        self.states.append(state.type.value)

    def submit(self, experiment: str, priority: str, newest: FlowRun, *, tags: list[str]) -> None:
        assert (experiment, priority, newest) == ("x", "high", self.run)
        self.submitted.append(tags)


def schedule_of(folder: Path, state: str, *tags: str) -> FakeSchedule:
    run = FlowRun(
        id=uuid.uuid4(),
        flow_id=uuid.uuid4(),
        state=State(type=StateType(state), id=uuid.uuid4()),
        parameters={"experiment": "x"},
        tags=list(tags),
        work_queue_name="high",
    )
    found = FakeSchedule(folder, run)
    found.root("x").mkdir(parents=True)
    (found.root("x") / CONFIG_FILE).touch()
    return found


def check_once(schedule: FakeSchedule, timeouts: Timeouts = AT_ONCE) -> list[str]:
    return Reconciler(schedule, schedule.folder, timeouts).check_once()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "folder", "set_to", "is_again"),
    [
        ("SCHEDULED", "", [], False),
        ("PENDING", "", ["CRASHED"], True),
        ("PENDING", "held", [], False),
        ("PENDING", "done", ["COMPLETED"], False),
        ("PENDING", "failed", ["CRASHED"], True),
        ("RUNNING", "", ["CRASHED"], True),
        ("RUNNING", "held", [], False),
        ("RUNNING", "done", ["COMPLETED"], False),
        ("RUNNING", "failed", ["FAILED"], False),
        ("CRASHED", "", ["CRASHED"], True),
        ("CRASHED", "held", [], False),
        ("CRASHED", "done", ["COMPLETED"], False),
        ("FAILED", "", [], False),
        ("FAILED", "failed", [], False),
        ("FAILED", "done", ["COMPLETED"], False),
        ("CRASHED", "failed", [], False),
        ("CANCELLING", "", ["CANCELLED"], False),
        ("CANCELLING", "held", [], False),
        ("CANCELLING", "failed", ["CANCELLED"], False),
        ("CANCELLED", "", [], False),
        ("COMPLETED", "done", [], False),
        ("COMPLETED", "", [], False),
    ],
)
def test_each_state_has_its_remedy(state: str, folder: str, set_to: list[str], is_again: bool, tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, state)
    root = schedule.root("x")
    if folder == "done":
        (root / RESULT_FILE).write_text("{}", encoding="utf-8")
    if folder == "failed":
        record_failure(root, ValueError("no"))
    with ExitStack() as stack:
        if folder == "held":
            stack.enter_context(ExperimentLock(root))
        words = check_once(schedule)
    assert schedule.states == set_to
    assert schedule.submitted == ([["restarts:1@0"]] if is_again else [])
    assert len(words) == (1 if set_to else 0)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "CRASHED"])
@pytest.mark.parametrize("cancelled", [["CANCELLING"], ["CANCELLED"], ["CANCELLING", "CRASHED"]])
def test_run_that_was_cancelled_never_comes_back(state: str, cancelled: list[str], tmp_path: Path) -> None:
    """Since the reconciler read its state; or before Prefect reported its end as a crash."""
    schedule = schedule_of(tmp_path, state)
    schedule.history += cancelled
    assert check_once(schedule) == ["x: cancelled; its process is gone"]
    assert (schedule.states, schedule.submitted) == (["CANCELLED"], [])


def test_cancelled_run_that_a_person_scheduled_again_comes_back(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "RUNNING")
    schedule.history += ["CANCELLING", "CANCELLED", "SCHEDULED", "PENDING", "RUNNING"]
    check_once(schedule)
    assert (schedule.states, schedule.submitted) == (["CRASHED"], [["restarts:1@0"]])


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "CANCELLING"])
def test_nothing_is_done_before_a_run_has_looked_dead_for_long_enough(state: str, tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, state)
    reconciler = Reconciler(schedule, tmp_path, LATER)  # type: ignore[arg-type]
    assert reconciler.check_once() == reconciler.check_once() == []
    assert (reconciler.num_suspects, schedule.states) == (1, [])
    with ExperimentLock(schedule.root("x")):
        reconciler.check_once()
    assert (reconciler.num_suspects, schedule.states) == (0, [])


def test_command_does_not_wait_for_ever_for_a_run_that_has_a_process_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = schedule_of(tmp_path, "RUNNING")
    monkeypatch.setattr("flows.service.reconciler.SLACK_S", 0.0)
    processes = HostProcesses({str(schedule.run.id): []}, None)
    monkeypatch.setattr(HostProcesses, "scan", lambda runs_dir: processes)
    assert reconcile_once(schedule, tmp_path, Timeouts(0.0, 0.0, 0.0)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "CRASHED"])
def test_run_whose_experiment_was_deleted_never_comes_back(state: str, tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, state)
    shutil.rmtree(schedule.root("x"))
    (message,) = check_once(schedule)
    assert message.endswith("; cancelled, because its experiment was deleted")
    assert (schedule.states, schedule.submitted) == (["CANCELLED"], [])
    assert not schedule.root("x").exists()


@pytest.mark.parametrize("state", ["COMPLETED", "SCHEDULED"])
def test_nothing_is_read_of_what_needs_no_judgement(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5,000 complete experiments, each look read 10,000 files."""
    read: list[Path] = []
    monkeypatch.setattr("flows.service.reconciler.experiment_status", read.append)
    check_once(schedule_of(tmp_path, state))
    assert read == []


def test_restarts_are_counted_and_end_in_a_failure_that_is_recorded(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "RUNNING", f"restarts:{MAX_RESTARTS - 1}@0")
    assert check_once(schedule) == [f"x: its process died; resubmitted ({MAX_RESTARTS} of {MAX_RESTARTS})"]
    assert schedule.submitted == [[f"restarts:{MAX_RESTARTS}@0"]]
    last = schedule_of(tmp_path / "last", "RUNNING", f"restarts:{MAX_RESTARTS}@0")
    assert check_once(last) == [f"x: its process died; given up after {MAX_RESTARTS} restarts"]
    assert (last.states, last.submitted) == (["CRASHED"], [])
    status = experiment_status(last.root("x"))
    assert status.reason == "EngineError: its process died, 4 times; retry it with `hacpo grid --run failed`"


def test_restarts_are_counted_anew_once_a_step_was_added(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "RUNNING", "a person's tag", f"restarts:{MAX_RESTARTS}@7")
    steps = schedule.root("x") / "steps"
    (steps / "000007").mkdir(parents=True)
    assert check_once(schedule) == [f"x: its process died; given up after {MAX_RESTARTS} restarts"]
    (schedule.root("x") / FAILURE_FILE).unlink()
    (steps / "000008").mkdir()
    check_once(schedule)
    assert schedule.submitted == [["restarts:1@8"]]


def test_crash_that_the_worker_saw_is_given_up_as_well(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "CRASHED", f"restarts:{MAX_RESTARTS}@0")
    assert check_once(schedule) == [f"x: its process died; given up after {MAX_RESTARTS} restarts"]
    assert experiment_status(schedule.root("x")).state == "failed"
    assert check_once(schedule) == [], "once"


def test_what_crashed_says_why_it_goes_back_into_the_queue(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "CRASHED")
    schedule.run.state.message = "Prefect did not run a task\nand much more"  # type: ignore[union-attr]
    assert check_once(schedule) == [f"x: Prefect did not run a task; resubmitted (1 of {MAX_RESTARTS})"]


@pytest.mark.parametrize(
    ("place", "folder", "set_to"),
    [
        ("here", "", ["CRASHED"]),
        ("here", "done", ["COMPLETED"]),
        ("here", "held", []),
        ("elsewhere", "", []),  # another folder's, on a server for all
    ],
)
def test_command_that_was_killed_is_reported_and_not_started_again(
    place: str, folder: str, set_to: list[str], tmp_path: Path
) -> None:
    schedule = schedule_of(tmp_path, "RUNNING")
    run, root = schedule.run, schedule.root("x")
    run.parameters["runs_dir"] = str(tmp_path if place == "here" else tmp_path / "elsewhere")
    schedule.flow_runs = dict  # type: ignore[method-assign]
    schedule.client.read_flow_runs = lambda **asked: [run] if asked.get("flow_filter") is not None else []
    if folder == "done":
        (root / RESULT_FILE).write_text("{}", encoding="utf-8")
    with ExperimentLock(root) if folder == "held" else nullcontext():
        check_once(schedule)
    assert (schedule.states, schedule.submitted) == (set_to, [])


def test_error_of_the_server_ends_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = schedule_of(tmp_path, "RUNNING")

    def silent() -> dict[str, FlowRun]:
        raise ServerError("the server does not answer")

    monkeypatch.setattr(schedule, "flow_runs", silent)
    with pytest.raises(ServerError, match="does not answer"):
        check_once(schedule)


@pytest.mark.system
def test_what_a_killed_training_did_not_send_to_mlflow_is_sent_by_the_reconciler(
    small_plan: Callable[..., Plan],
) -> None:
    planned = small_plan("gspo", "tracking.enabled=true", "evaluate.during=[]", "evaluate.final=[]")
    mark_unsent(planned.root)
    untracked = replace(planned, config=replace(planned.config, tracking=TrackingConfig(enabled=False)))
    run_experiment(untracked, DirectRunner())
    runs_dir = Path(planned.config.runtime.runs_dir)
    reconciler = Reconciler(FakeSchedule(runs_dir, schedule_of(runs_dir, "COMPLETED").run), runs_dir)  # type: ignore[arg-type]
    with ExperimentLock(planned.root):
        reconciler.send_tracking()
        assert reconciler.sender is None, "a process that trains it sends it as well"
    reconciler.send_tracking()
    assert reconciler.sender is None, "not yet: a look reads a file of every experiment"
    reconciler = Reconciler(reconciler.schedule, runs_dir)
    reconciler.send_tracking()
    assert reconciler.sender is not None
    assert reconciler.sender.wait() == 0
    assert not has_unsent(planned.root)
    points = mlflow_points(runs_dir / "mlflow.db")
    assert {step for run, name, step, _ in points if (run, name) == (planned.id, "progress/step")} == {1, 2, 3, 4}
