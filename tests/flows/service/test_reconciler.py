"""What the reconciler makes of each state of a flow run, of its experiment's folder, and of this host's processes."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType

from flows.records.failures import FAILURE_FILE, record_failure
from flows.records.states import CONFIG_FILE, RESULT_FILE, experiment_status
from flows.service.reconciler import MAX_RESTARTS, Reconciler, Timeouts, processes_of_runs
from hacpo_core.store.lock import ExperimentLock

AT_ONCE, LATER = Timeouts(0.0, 0.0, 0.0), Timeouts(60.0, 60.0, 60.0)
EXPERIMENT = "runs:0123"
"""tag of a run with a lock"""


@dataclass
class FakeSchedule:
    """A server with one flow run, of experiment "x" if it is tagged so; remembers what is done to it."""

    folder: Path
    run: FlowRun
    history: list[str] = field(default_factory=lambda: ["SCHEDULED", "PENDING", "RUNNING"])
    states: list[str] = field(default_factory=list)
    submitted: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = SimpleNamespace(
            set_flow_run_state=self._set,
            read_flow_runs=self._read,
            read_flow_run_states=lambda _: [State(type=StateType(state)) for state in self.history],
        )

    def root(self, experiment: str) -> Path:
        return self.folder / "experiments" / experiment

    def flow_runs(self) -> dict[str, FlowRun]:
        return {"x": self.run} if EXPERIMENT in self.run.tags else {}

    def _read(self, *, flow_run_filter: Any, flow_filter: Any, offset: int, **_: Any) -> list[FlowRun]:
        kinds = {kind.value for kind in flow_run_filter.state.type.any_}
        is_asked = flow_run_filter.id is None or self.run.id in flow_run_filter.id.any_
        is_command = self.run.deployment_id is None
        is_asked = is_asked and (flow_filter is None or is_command)
        return [self.run] if is_asked and not offset and str(self.run.state_type.value) in kinds else []  # type: ignore[union-attr]

    def _set(self, run_id: Any, state: State[Any], *, force: bool) -> None:
        assert (run_id, force) == (self.run.id, True)
        self.states.append(state.type.value)

    def submit(self, experiment: str, newest: FlowRun, *, tags: list[str]) -> None:
        assert (experiment, newest) == ("x", self.run)
        self.submitted.append(tags)


def schedule_of(folder: Path, state: str, *tags: str, is_command: bool = False) -> FakeSchedule:
    kind = StateType(state)
    run = FlowRun(
        id=uuid.uuid4(),
        flow_id=uuid.uuid4(),
        name="x",
        deployment_id=None if is_command else uuid.uuid4(),
        state=State(type=kind, id=uuid.uuid4()),
        state_type=kind,
        parameters={"experiment": "x", "runs_dir": str(folder)},
        tags=list(tags),
    )
    found = FakeSchedule(folder, run)
    found.root("x").mkdir(parents=True, exist_ok=True)
    (found.root("x") / CONFIG_FILE).touch()
    return found


def reconciler_of(schedule: FakeSchedule, timeouts: Timeouts = AT_ONCE) -> Reconciler:
    return Reconciler(schedule, schedule.folder, timeouts)  # type: ignore[arg-type]


def check_once(schedule: FakeSchedule, timeouts: Timeouts = AT_ONCE) -> list[str]:
    return reconciler_of(schedule, timeouts).check_once()


CASES = [  # state, what is in the folder, states that it is set to, whether it is submitted again
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
    ("CRASHED", "failed", [], False),
    ("FAILED", "", [], False),
    ("FAILED", "failed", [], False),
    ("FAILED", "done", ["COMPLETED"], False),
    ("CANCELLING", "", ["CANCELLED"], False),
    ("CANCELLING", "held", [], False),
    ("CANCELLING", "failed", ["CANCELLED"], False),
    ("CANCELLED", "", [], False),
    ("COMPLETED", "done", [], False),
    ("COMPLETED", "", [], False),
]


def fill(schedule: FakeSchedule, folder: str) -> Any:
    """Put a result or a failure into the folder, or give the context in which its lock is held."""
    root = schedule.root("x")
    if folder == "done":
        (root / RESULT_FILE).write_text("{}", encoding="utf-8")
    if folder == "failed":
        record_failure(root, ValueError("no"))
    return ExperimentLock(root) if folder == "held" else nullcontext()


def test_each_state_has_its_remedy(tmp_path: Path) -> None:
    wrong = []
    for number, (state, folder, set_to, is_again) in enumerate(CASES):
        schedule = schedule_of(tmp_path / str(number), state, EXPERIMENT)
        with fill(schedule, folder):
            words = check_once(schedule)
        outcome = (schedule.states, schedule.submitted, len(words))
        if outcome != (set_to, [["restarts:1@0"]] if is_again else [], 1 if set_to else 0):
            wrong.append((state, folder, outcome))
    assert wrong == []


def test_command_that_was_killed_is_reported_and_not_started_again(tmp_path: Path) -> None:
    for number, (folder, set_to) in enumerate([("", ["CRASHED"]), ("done", ["COMPLETED"]), ("held", [])]):
        schedule = schedule_of(tmp_path / str(number), "RUNNING", is_command=True)
        with fill(schedule, folder):
            check_once(schedule)
        assert (schedule.states, schedule.submitted) == (set_to, []), folder
    other = schedule_of(tmp_path / "other", "RUNNING", is_command=True)
    other.run.parameters["runs_dir"] = str(tmp_path)  # another folder's, on a server for all
    assert check_once(other) == []


def test_run_that_was_cancelled_never_comes_back_unless_a_person_schedules_it(tmp_path: Path) -> None:
    """Cancelled since the reconciler read its state; or before Prefect reported its end as a crash."""
    for number, state in enumerate(["PENDING", "RUNNING", "CRASHED"]):
        for cancelled in (["CANCELLING"], ["CANCELLED"], ["CANCELLING", "CRASHED"]):
            schedule = schedule_of(tmp_path / str(number), state, EXPERIMENT)
            schedule.history += cancelled
            assert check_once(schedule) == ["x: cancelled; its process is gone"]
            assert (schedule.states, schedule.submitted) == (["CANCELLED"], [])
    schedule = schedule_of(tmp_path, "RUNNING", EXPERIMENT)
    schedule.history += ["CANCELLING", "CANCELLED", "SCHEDULED", "PENDING", "RUNNING"]
    check_once(schedule)
    assert (schedule.states, schedule.submitted) == (["CRASHED"], [["restarts:1@0"]])


def test_nothing_is_done_before_a_run_has_looked_dead_for_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("flows.service.reconciler.time.monotonic", lambda: now)
    for state in ("PENDING", "RUNNING", "CANCELLING"):
        schedule = schedule_of(tmp_path, state, EXPERIMENT)
        reconciler = reconciler_of(schedule, LATER)
        now = 0.0
        assert reconciler.check_once() == []
        now = 59.0
        assert reconciler.check_once() == []
        with ExperimentLock(schedule.root("x")):
            reconciler.check_once()  # it lives
        now = 61.0
        assert reconciler.check_once() == [], "it has looked dead for a moment only"
        now = 122.0
        assert len(reconciler.check_once()) == 1


def test_lost_run_is_found_long_before_one_that_may_still_start(tmp_path: Path) -> None:
    timeouts = Timeouts(pending_s=60.0, running_s=60.0, gone_s=0.0)
    for state, is_command, is_older, set_to in (
        ("RUNNING", False, True, ["CRASHED"]),
        ("RUNNING", True, True, []),  # it may be about to take the lock
        ("PENDING", False, True, ["CRASHED"]),
        ("PENDING", False, False, []),  # this worker took it, and is about to start it
    ):
        schedule = schedule_of(tmp_path, state, EXPERIMENT, is_command=is_command)
        reconciler = reconciler_of(schedule, timeouts)
        if not is_older:
            reconciler._created_at -= 60.0
        reconciler.check_once()
        assert schedule.states == set_to, (state, is_command, is_older)


def test_run_whose_experiment_was_deleted_never_comes_back(tmp_path: Path) -> None:
    for state in ("PENDING", "RUNNING", "CRASHED"):
        schedule = schedule_of(tmp_path, state, EXPERIMENT)
        shutil.rmtree(schedule.root("x"))
        (message,) = check_once(schedule)
        assert message.endswith("; cancelled, because its experiment was deleted")
        assert (schedule.states, schedule.submitted) == (["CANCELLED"], [])
        assert not schedule.root("x").exists()


def test_restarts_are_counted_until_a_step_is_added_and_end_in_a_recorded_failure(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "RUNNING", EXPERIMENT, f"restarts:{MAX_RESTARTS - 1}@0")
    assert check_once(schedule) == [f"x: its process died; resubmitted ({MAX_RESTARTS} of {MAX_RESTARTS})"]
    assert schedule.submitted == [[f"restarts:{MAX_RESTARTS}@0"]]
    for state in ("RUNNING", "CRASHED"):
        last = schedule_of(tmp_path / state, state, EXPERIMENT, "a person's tag", f"restarts:{MAX_RESTARTS}@7")
        steps = last.root("x") / "steps"
        (steps / "000007").mkdir(parents=True)
        assert check_once(last) == [f"x: its process died; given up after {MAX_RESTARTS} restarts"]
        assert (last.states, last.submitted) == (["CRASHED"], [])
        reason = experiment_status(last.root("x")).reason
        assert reason == "EngineError: its process died, 4 times; retry it with `hacpo grid --run all`"
        (last.root("x") / FAILURE_FILE).unlink()
        (steps / "000008").mkdir()
        check_once(last)
        assert last.submitted == [["restarts:1@8"]]


@pytest.fixture
def engine() -> Iterator[Any]:
    """Starts what looks like a flow run's process: by its environment and its command line."""
    started = []

    def start(run: Any, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PREFECT__FLOW_RUN_ID": str(run.id)}
        code = "import time; time.sleep(600)"
        started.append(subprocess.Popen([sys.executable, "-c", code, *words], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("state", "set_to"), [("CANCELLED", []), ("CANCELLING", ["CANCELLED"])])
def test_process_that_outlives_its_cancelled_run_is_killed(
    state: str, set_to: list[str], engine: Any, tmp_path: Path
) -> None:
    schedule = schedule_of(tmp_path, state)
    process, helper = engine(schedule.run, "prefect.engine"), engine(schedule.run)
    strange = engine(SimpleNamespace(id="17"), "prefect.engine")  # another program's variable
    if set_to:
        assert check_once(schedule, LATER) == [], "while it is Cancelling, its worker may end it"
    assert check_once(schedule, AT_ONCE if set_to else LATER) == [
        f"x: process {process.pid} killed; the run is cancelled"
    ]
    assert process.wait(10) == -9
    assert schedule.states == set_to
    assert check_once(schedule) == []
    assert helper.poll() is None, "what cleans up behind it may do so"
    assert strange.poll() is None


def test_living_process_is_left_alone(engine: Any, tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, "RUNNING")
    process = engine(schedule.run, "prefect.engine")
    assert [found.pid for found in processes_of_runs()[str(schedule.run.id)]] == [process.pid]
    assert check_once(schedule) == []
    assert psutil.pid_exists(process.pid)
