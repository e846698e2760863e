"""The queue on a real server: submitted once, moved, cancelled, refused with a reason; limits, workers, deployments."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.schemas.objects import State
from prefect.states import Crashed

from flows.planning.plans import Plan
from flows.records.failures import FAILURE_FILE, record_failure
from flows.records.states import RESULT_FILE
from flows.service.deployments import DECLARATIONS, deploy
from flows.service.prefect_server import auth_file, ensure_server, find_server
from flows.service.schedule import RefusedError, Schedule
from hacpo_core.errors import ServerError
from hacpo_core.store.lock import ExperimentLock

pytestmark = pytest.mark.system


@pytest.fixture
def schedule(site_dir: Path) -> Schedule:
    return Schedule(ensure_server(site_dir), site_dir)


def planned(small_plan: Callable[..., Plan], site_dir: Path, seed: int) -> Plan:
    return small_plan("hacpo", f"seed={seed}", runs_dir=site_dir)


def test_experiment_is_in_the_queue_once_however_many_ask_at_once(
    schedule: Schedule, small_plan: Callable[..., Plan], site_dir: Path
) -> None:
    name = planned(small_plan, site_dir, 1).id
    answers: list[str] = []

    def ask() -> None:
        try:
            answers.append(Schedule(ensure_server(site_dir), site_dir).start(name).id)
        except RefusedError as refusal:
            answers.append(str(refusal))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (run,) = [run for run in schedule.all_flow_runs() if run.parameters["experiment"] == name]
    assert set(answers) <= {str(run.id), f"{name} is already in the queue (waiting for a worker)"}
    assert str(run.id) in answers
    assert len(answers) == 4


def test_cancelled_experiment_can_be_started_again_and_an_idle_one_not_cancelled(
    schedule: Schedule, small_plan: Callable[..., Plan], site_dir: Path
) -> None:
    name = planned(small_plan, site_dir, 3).id
    with pytest.raises(RefusedError, match="neither in the queue nor running"):
        schedule.cancel(name)
    first = schedule.start(name)
    schedule.cancel(name)
    assert schedule.runs()[name].state == "Cancelled"
    second = schedule.start(name)
    assert second.id != first.id
    assert schedule.runs()[name].is_live


@pytest.mark.parametrize("has_worker", [True, False])
def test_crashed_run_is_cancelled_unless_it_was_given_up(
    has_worker: bool, schedule: Schedule, small_plan: Callable[..., Plan], site_dir: Path
) -> None:
    plan = planned(small_plan, site_dir, 10 + has_worker)
    run = uuid.UUID(schedule.start(plan.id).id)
    schedule.client.set_flow_run_state(run, Crashed(message="ended by a signal"), force=True)
    record_failure(plan.root, ServerError("given up"))
    with pytest.raises(RefusedError, match="neither in the queue nor running"):
        schedule.cancel(plan.id, has_worker=has_worker)
    (plan.root / FAILURE_FILE).unlink()
    schedule.cancel(plan.id, has_worker=has_worker)
    assert schedule.runs()[plan.id].state == "Cancelled", "the reconciler would have put it back into the queue"


def test_crashed_run_that_the_reconciler_puts_back_while_it_is_cancelled_is_cancelled_as_well(
    schedule: Schedule, small_plan: Callable[..., Plan], site_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = planned(small_plan, site_dir, 13).id
    schedule.start(name)
    (run,) = [run for run in schedule.all_flow_runs() if run.parameters["experiment"] == name]
    set_state = schedule.client.set_flow_run_state
    set_state(run.id, Crashed(message="ended by a signal"), force=True)

    def put_back_first(run_id: uuid.UUID, state: State[Any], **words: Any) -> object:
        schedule.submit(name, run)
        return set_state(run_id, state, **words)

    monkeypatch.setattr(schedule.client, "set_flow_run_state", put_back_first)
    schedule.cancel(name)
    states = [run.state_name for run in schedule.all_flow_runs() if run.parameters["experiment"] == name]
    assert states == ["Cancelled", "Cancelled"]


def test_successor_that_crashed_gets_one_although_the_clock_was_set_back_before_it(
    schedule: Schedule, small_plan: Callable[..., Plan], site_dir: Path
) -> None:
    name = planned(small_plan, site_dir, 9).id
    schedule.start(name)
    ahead = schedule.flow_runs()[name]  # stays the newest for Prefect
    first = schedule.submit(name, ahead)
    schedule.client.set_flow_run_state(uuid.UUID(first.id), Crashed(), force=True)
    second, third = schedule.submit(name, ahead), schedule.submit(name, ahead)
    assert second.is_live and second.id != first.id
    assert third.id == second.id, "once"


def test_what_is_complete_or_alive_or_unknown_is_refused(
    schedule: Schedule, small_plan: Callable[..., Plan], site_dir: Path
) -> None:
    plan = planned(small_plan, site_dir, 4)
    with ExperimentLock(plan.root):
        with pytest.raises(RefusedError, match="is being trained .*; a live run cannot be started again"):
            schedule.start(plan.id)
        with pytest.raises(RefusedError, match="trained by a command, not by a worker; stop it there with Ctrl-C"):
            schedule.cancel(plan.id)
    (plan.root / RESULT_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(RefusedError, match="is complete"):
        schedule.start(plan.id)
    with pytest.raises(RefusedError, match="was never planned in .*; plan it with `hacpo grid`"):
        schedule.start("nobody-knows-s0-00000000")
    assert plan.id not in schedule.runs()


def test_deployments_stay_as_people_set_them_until_they_are_declared_otherwise(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = schedule.client
    deploy(client)
    before = client.read_deployment_by_name("grid/grid")
    (nightly,) = before.schedules
    assert not nightly.active
    client.update_deployment_schedule(before.id, nightly.id, active=True)
    deploy(client)
    assert [one.active for one in client.read_deployment_by_name("grid/grid").schedules] == [True]
    text = DECLARATIONS.read_text(encoding="utf-8").replace("0 2 * * *", "0 3 * * *")
    (tmp_path / "prefect.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("flows.service.deployments.DECLARATIONS", tmp_path / "prefect.yaml")
    deploy(client)
    (nightly,) = client.read_deployment_by_name("grid/grid").schedules
    assert (nightly.active, nightly.schedule.cron) == (False, "0 3 * * *")
    found = client.read_deployments()
    assert {one.name for one in found} == {"experiment", "grid"}
    assert all(client.read_flow(one.flow_id).name == one.name for one in found)


def test_second_worker_of_a_folder_says_so_and_no_token_is_on_a_command_line(site_dir: Path) -> None:
    words = [sys.executable, "-m", "flows.cli", "worker", "--runs-dir", str(site_dir), "--slots", "1"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        said = []
        while not said or "started!" not in said[-1]:
            said.append(first.stdout.readline())
            assert said[-1], said
        found = find_server(site_dir)
        assert found is not None
        assert f"Prefect  {found.url}  (log-in: see {auth_file(site_dir)}; stop it with `hacpo server stop`)\n" in said
        second = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        assert f"already running (process {first.pid}); nothing to do" in second.stdout
        server = find_server(site_dir)
        assert server is not None
        secret = server.auth.partition(":")[2]
        mine = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]  # and runs left above
        lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        assert not any(secret in line for line in lines)
    finally:
        first.terminate()
        first.communicate(timeout=60)
    _, left = psutil.wait_procs(mine, timeout=30)
    assert not left
