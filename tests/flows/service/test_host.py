"""What a host does about its own flow runs: ends processes of cancelled ones, reports those whose process is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Pending, Running

from flows.service.deployments import POOL, deploy
from flows.service.host import HostProcesses, HostWatch, Suspects, Timeouts
from flows.service.processes import worker_record
from flows.service.schedule import Schedule, worker_name
from flows.service.server import ensure_server, stop_server
from flows.service.serving import set_pool_limit
from hacpo_core.errors import ServerError

AT_ONCE, LATER = Timeouts(0.0, 0.0, 0.0), Timeouts(60.0, 60.0, 60.0)
NOWHERE = Path("/nowhere")
"""a runs folder that has no worker"""
SLEEP = "import time; time.sleep(600)"


class FakeClient:
    """One flow run on a server; remembers the states that it is set to."""

    def __init__(self, state: str, *, worker: str | None, tags: list[str] | None = None) -> None:
        kind = StateType(state)
        labels = {} if worker is None else {"prefect.worker.name": worker}
        self.run = FlowRun(
            id=uuid.uuid4(),
            flow_id=uuid.uuid4(),
            name="x",
            state=State(type=kind, id=uuid.uuid4()),
            state_id=uuid.uuid4(),
            state_type=kind,
            labels=labels,
            tags=tags or [],
        )
        self.states: list[str] = []

    def read_flow_runs(self, *, flow_run_filter: Any, work_pool_filter: Any, **_: object) -> list[FlowRun]:
        kinds = {kind.value for kind in flow_run_filter.state.type.any_}
        is_asked = flow_run_filter.id is None or self.run.id in flow_run_filter.id.any_
        return [self.run] if is_asked and self.run.state_type is not None and self.run.state_type.value in kinds else []

    def set_flow_run_state(self, run_id: uuid.UUID, state: State[Any], *, force: bool) -> None:
        assert (run_id, force) == (self.run.id, True)
        self.states.append(state.type.value)


HERE, ELSEWHERE = worker_name(socket.gethostname(), 2), worker_name("elsewhere", 2)


@pytest.mark.parametrize(
    ("state", "worker", "tags", "set_to"),
    [
        ("RUNNING", HERE, [], ["CRASHED"]),
        ("PENDING", HERE, [], ["CRASHED"]),
        ("PENDING", None, [], ["CRASHED"]),
        ("CANCELLING", HERE, [], ["CANCELLED"]),
        ("RUNNING", ELSEWHERE, [], []),
        ("RUNNING", HERE, ["runs:0123"], []),
        ("SCHEDULED", None, [], []),
        ("COMPLETED", HERE, [], []),
    ],
)
def test_run_whose_process_is_gone_is_reported(
    state: str, worker: str | None, tags: list[str], set_to: list[str]
) -> None:
    client = FakeClient(state, worker=worker, tags=tags)
    assert len(HostWatch(Suspects(NOWHERE, AT_ONCE)).check_once(client)) == len(set_to)  # type: ignore[arg-type]
    assert client.states == set_to


def test_nothing_is_done_before_a_run_has_looked_dead_for_long_enough() -> None:
    client, watch = FakeClient("RUNNING", worker=HERE), HostWatch(Suspects(NOWHERE, LATER))
    assert watch.check_once(client) == watch.check_once(client) == []  # type: ignore[arg-type]
    assert len(watch.suspects) == 1
    client.run.state_type = StateType.COMPLETED
    watch.check_once(client)  # type: ignore[arg-type]
    assert len(watch.suspects) == 0


def test_error_that_ends_a_round_early_forgets_nothing() -> None:
    suspects, run = Suspects(NOWHERE, LATER), FakeClient("RUNNING", worker=HERE).run
    with suspects.one_round():
        assert not suspects.is_due(run)
    with pytest.raises(ServerError), suspects.one_round():
        raise ServerError("the server does not answer")
    assert len(suspects) == 1
    with suspects.one_round():
        pass  # the run is alive
    assert len(suspects) == 0


def test_pending_run_is_lost_once_the_worker_that_took_it_is_gone() -> None:
    """A worker that is younger than the run's state did not take it."""
    run = FakeClient("PENDING", worker=HERE, tags=["runs:0123"]).run
    assert run.state is not None
    taken_at = run.state.timestamp.timestamp()
    assert HostProcesses({}, None).has_lost(run)
    assert HostProcesses({}, taken_at + 1.0).has_lost(run)
    assert not HostProcesses({}, taken_at - 1.0).has_lost(run)
    assert not HostProcesses({str(run.id): [psutil.Process()]}, None).has_lost(run)
    for worker, tags in ((ELSEWHERE, ["runs:0123"]), (None, ["runs:0123"]), (HERE, [])):
        other = FakeClient("PENDING", worker=worker, tags=tags).run
        assert not HostProcesses({}, None).has_lost(other), "another host or another folder may have it"


def test_only_the_folders_own_worker_counts(tmp_path: Path) -> None:
    record = worker_record(tmp_path)
    assert HostProcesses.scan(tmp_path).worker_since is None
    record.path.parent.mkdir(parents=True)
    record.write(os.getpid(), {"slots": 1})
    assert HostProcesses.scan(tmp_path).worker_since == psutil.Process().create_time()
    assert HostProcesses.scan(tmp_path / "other").worker_since is None


def test_lost_run_is_reported_long_before_one_that_may_still_start() -> None:
    timeouts = Timeouts(pending_s=60.0, running_s=60.0, gone_s=0.0)
    for worker, set_to in ((HERE, ["CRASHED"]), (None, [])):
        client = FakeClient("RUNNING", worker=worker)
        HostWatch(Suspects(NOWHERE, timeouts)).check_once(client)  # type: ignore[arg-type]
        assert client.states == set_to


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Starts what looks like a flow run's process: by its environment and its command line."""
    started = []

    def start(run: FlowRun, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PREFECT__FLOW_RUN_ID": str(run.id)}
        started.append(subprocess.Popen([sys.executable, "-c", SLEEP, *words], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("state", "set_to"), [("CANCELLED", []), ("CANCELLING", ["CANCELLED"])])
def test_process_that_outlives_its_cancelled_run_is_killed(state: str, set_to: list[str], engine: Any) -> None:
    client = FakeClient(state, worker=ELSEWHERE)  # whatever the server believes, the process is here
    process, helper = engine(client.run, "prefect.engine"), engine(client.run)
    (words,) = HostWatch(Suspects(NOWHERE, AT_ONCE)).check_once(client)  # type: ignore[arg-type]
    assert words == f"x: process {process.pid} killed; the run is cancelled"
    assert process.wait(10) == -9
    assert helper.poll() is None, "what cleans up behind it may do so"
    assert client.states == set_to


def test_process_with_a_foreign_variable_is_no_run(engine: Any) -> None:
    """Another program may have set the variable to anything."""
    run = FakeClient("RUNNING", worker=HERE).run
    strange, known = engine(SimpleNamespace(id="17")), engine(run)
    found = HostProcesses.scan(NOWHERE).of_runs
    assert [process.pid for process in found[str(run.id)]] == [known.pid]
    assert strange.pid not in [process.pid for processes in found.values() for process in processes]


def test_living_process_is_left_alone(engine: Any) -> None:
    client = FakeClient("RUNNING", worker=HERE)
    process = engine(client.run, "prefect.engine")
    assert HostWatch(Suspects(NOWHERE, AT_ONCE)).check_once(client) == []  # type: ignore[arg-type]
    client.run.state_type = StateType.CANCELLING
    assert HostWatch(Suspects(NOWHERE, LATER)).check_once(client) == [], "its worker ends it"  # type: ignore[arg-type]
    assert psutil.pid_exists(process.pid)


@pytest.mark.system
def test_dead_report_gives_its_place_in_the_pool_back(tmp_path: Path, migrated: Callable[[Path], None]) -> None:
    migrated(tmp_path)
    schedule = Schedule(ensure_server(tmp_path), tmp_path)
    client = schedule.client
    try:
        deploy(client)
        set_pool_limit(schedule, 1)
        report = client.read_deployment_by_name("report/report").id
        dead, waiting = (client.create_flow_run_from_deployment(report) for _ in range(2))
        client.update_flow_run_labels(dead.id, {"prefect.worker.name": HERE})
        client.set_flow_run_state(dead.id, Pending(), force=True)
        client.set_flow_run_state(dead.id, Running(), force=True)

        def offered() -> list[uuid.UUID]:
            return [one.flow_run.id for one in client.get_scheduled_flow_runs_for_work_pool(POOL)]

        assert offered() == []
        assert HostWatch(Suspects(tmp_path, LATER)).check_once(client) == []
        assert HostWatch(Suspects(tmp_path, AT_ONCE)).check_once(client) == [
            f"{dead.name}: crashed; its process is gone"
        ]
        assert offered() == [waiting.id]
    finally:
        stop_server(tmp_path)
