"""The experiment flow against a real Prefect server: same bits, readable names, tags, retries."""

import dataclasses
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flows.cli import EXIT_LOCKED
from flows.planning.plans import Plan
from flows.records.states import experiment_status
from flows.service.prefect_server import (
    PrefectServer,
    auth_file,
    ensure_server,
    find_server,
    home_of,
    is_healthy,
    stop_server,
)
from flows.service.processes import Record
from hacpo_core.store.lock import ExperimentLock
from tests.experiments_outcome import outcome
from tests.waiting import wait_until

pytestmark = pytest.mark.system
AGENTS = ("qwen", "llama")

# In a process of its own: Prefect reads its settings at import. `fault`: why an optimizer step fails, or every task.
CHILD = """
import httpx, json, os, signal, sys
from pathlib import Path
from flows.service.prefect_server import find_server, use_server
root, runs_dir, fault = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
use_server(find_server(runs_dir), runs_dir)
from flows.planning.plans import find_plan
from flows.runs.flow import run_with_prefect
from hacpo_core.store.lock import ExperimentLock
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.errors import ConfigError, ServerError
inner, calls = TorchLearner.optimizer_step, []
FAULTS = {"config": ConfigError("broken for good"), "memory": RuntimeError("out of memory")}
def failing(self):
    calls.append(1)
    if len(calls) == 3 and fault == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if len(calls) == 6 and fault in FAULTS:
        raise FAULTS[fault]
    return inner(self)
TorchLearner.optimizer_step = failing
async def silent(self, request, **_):
    raise httpx.ConnectError(f"no answer to {request.url.path}")
if fault == "outage":
    httpx.AsyncClient.send = silent  # Prefect asks for a task's slots in no other way
try:
    with ExperimentLock(root):
        run_with_prefect(find_plan(runs_dir, root.name))
    print(json.dumps({"calls": len(calls)}))
except (ConfigError, ServerError) as error:
    print(json.dumps({"error": str(error), "calls": len(calls)}))
except KeyboardInterrupt:
    print(json.dumps({"error": "interrupted", "calls": len(calls)}))
"""


@pytest.fixture(scope="module")
def server(site_dir: Path) -> tuple[Path, PrefectServer]:
    """A managed server on a runs folder of its own."""
    return site_dir, ensure_server(site_dir)


def run_child(plan: Plan, runs_dir: Path, fault: str) -> dict[str, Any]:
    done = child(plan, runs_dir, fault)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def child(plan: Plan, runs_dir: Path, fault: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, str(plan.root), str(runs_dir), fault]
    # A server that has just started may be too busy to answer at once, which its client waits for.
    environment = os.environ | ({"PREFECT_CLIENT_MAX_RETRIES": "0"} if fault == "outage" else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def ask(record: PrefectServer, path: str, **body: Any) -> list[dict[str, Any]]:
    user, _, password = record.auth.partition(":")
    with httpx.Client(base_url=f"{record.url}/api", auth=(user, password), timeout=30) as client:
        token = client.get("/csrf-token", params={"client": "test"}).json()["token"]
        headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "test"}
        response = client.post(f"/{path}/filter", json=body, headers=headers)
    response.raise_for_status()
    found: list[dict[str, Any]] = response.json()
    return found


def tasks_of(record: PrefectServer, flow_run: str, *awaited: str) -> dict[str, dict[str, Any]]:
    """Task runs of the one flow run of this name, by their own names.

    The server writes their records in batches: waits until those that are named are there and have ended.
    """
    (run,) = ask(record, "flow_runs", flow_runs={"name": {"any_": [flow_run]}})
    tasks: dict[str, dict[str, Any]] = {}

    def have_ended() -> bool:
        nonlocal tasks  # read anew: a task run has another name until it begins
        found = ask(record, "task_runs", flow_runs={"id": {"any_": [run["id"]]}}, limit=200)
        tasks = {task["name"]: task for task in found}
        assert len(tasks) == len(found), "each phase once"
        return all(name in tasks and tasks[name]["end_time"] for name in awaited)

    wait_until(have_ended, f"the end of {awaited}", said=lambda: f"found: {sorted(tasks)}")
    return tasks


def before(tasks: dict[str, dict[str, Any]], name: str) -> set[str]:
    """Names of the tasks that Prefect's page draws an edge from."""
    names = {task["id"]: known for known, task in tasks.items()}
    return {names[run["id"]] for run in tasks[name]["task_inputs"].get("wait_for", [])}


def test_prefect_run_repeats_what_failed_has_the_bits_of_the_direct_run_and_is_readable(
    small_plan: Callable[..., Plan],
    undisturbed: Callable[[Plan], dict[str, Any]],
    tmp_path: Path,
    server: tuple[Path, PrefectServer],
) -> None:
    runs_dir, record = server
    served = small_plan("hacpo", "runtime.runner=prefect", runs_dir=runs_dir)
    run_child(served, runs_dir, "memory")
    assert outcome(served) == undisturbed(small_plan("hacpo", runs_dir=tmp_path / "direct"))
    gpu, cpu = ("step 3 · rollout · qwen", "step 3 · update · llama"), ("step 3 · verify · qwen", "step 3 · advantage")
    tasks = tasks_of(record, served.id, *gpu, *cpu)
    assert [name.split(" · ")[1] for name, task in tasks.items() if task["run_count"] == 2] == ["update"]
    assert [tasks[name]["tags"] for name in (*gpu, *cpu)] == [["gpu"], ["gpu"], [], []]
    assert {tasks[name]["state_type"] for name in (*gpu, *cpu)} == {"COMPLETED"}
    edges = {name: before(tasks, f"step 3 · {name}") for name in ("rollout · qwen", "verify · qwen", "advantage")}
    edges["update · llama"] = before(tasks, "step 3 · update · llama")
    assert edges == {
        "rollout · qwen": set(),
        "verify · qwen": {"step 3 · rollout · qwen"},
        "advantage": {"step 3 · verify · qwen", "step 3 · verify · llama"},
        "update · llama": {"step 3 · advantage"},
    }


def test_configuration_error_is_never_retried(
    small_plan: Callable[..., Plan], server: tuple[Path, PrefectServer]
) -> None:
    runs_dir, record = server
    served = small_plan("naive", "runtime.runner=prefect", runs_dir=runs_dir)
    assert run_child(served, runs_dir, "config") == {"error": "broken for good", "calls": 6}
    failed = tasks_of(record, served.id, "step 1 · update · llama")["step 1 · update · llama"]
    assert (failed["state_type"], failed["run_count"]) == ("FAILED", 1)


def state_of(record: PrefectServer, flow_run: str) -> tuple[str, str]:
    (run,) = ask(record, "flow_runs", flow_runs={"name": {"any_": [flow_run]}})
    return run["state_type"], run["state"]["message"]


def test_run_that_prefect_failed_crashed_and_its_experiment_has_not_failed(
    small_plan: Callable[..., Plan], tmp_path: Path, server: tuple[Path, PrefectServer]
) -> None:
    runs_dir, record = server
    served = small_plan("hacpo", "seed=6", runs_dir=runs_dir)
    words = run_child(served, runs_dir, "outage")["error"]
    assert re.match(r"Prefect did not run step 0 · .*: Unable to acquire concurrency slots on .*`hacpo resume`", words)
    assert state_of(record, served.id) == ("CRASHED", words)
    assert experiment_status(served.root).state == "missing", "a worker's reconciler starts it again"


def test_command_that_anothers_lock_keeps_out_says_so_and_starts_no_server(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    locked = small_plan("hacpo", "runtime.runner=prefect", runs_dir=tmp_path)
    with ExperimentLock(locked.root):
        words = [sys.executable, "-m", "flows.cli", "resume", locked.id, "--runs-dir", str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (done.returncode, find_server(tmp_path)) == (EXIT_LOCKED, None)
    assert "is being written by process" in done.stderr


def test_command_that_is_ended_with_sigterm_is_interrupted_and_its_run_cancelled(
    small_plan: Callable[..., Plan], server: tuple[Path, PrefectServer]
) -> None:
    runs_dir, record = server
    served = small_plan("hacpo", "seed=8", runs_dir=runs_dir)
    interrupted = child(served, runs_dir, "sigterm")
    assert json.loads(interrupted.stdout.splitlines()[-1])["error"] == "interrupted"
    assert "ERROR" not in interrupted.stderr, "the command itself says it"
    assert state_of(record, served.id)[0] == "CANCELLED"
    assert experiment_status(served.root).state == "missing"
    run_child(served, runs_dir, "none")
    assert experiment_status(served.root).state == "done"


def test_server_is_found_again_protected_and_stopped_by_its_owner_alone(server: tuple[Path, PrefectServer]) -> None:
    runs_dir, record = server
    assert ensure_server(runs_dir) == record
    assert is_healthy(record)
    with closing(sqlite3.connect(home_of(runs_dir) / "prefect.db")) as database:
        database.execute("CREATE TRIGGER deaf BEFORE INSERT ON csrf_token BEGIN SELECT RAISE(ABORT, 'full'); END")
        assert not is_healthy(record), "it answers and cannot write"
        database.execute("DROP TRIGGER deaf")
    assert is_healthy(record)
    assert auth_file(runs_dir).stat().st_mode & 0o077 == 0
    assert (home_of(runs_dir) / "server.json").stat().st_mode & 0o077 == 0
    assert httpx.get(f"{record.url}/api/csrf-token", params={"client": "x"}, timeout=30).status_code == 401
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(f"{record.url}/api/flow_runs/filter", headers=headers, timeout=30)
    assert preflight.headers.get("access-control-allow-origin") not in ("*", "http://evil.example")


def test_servers_started_at_once_for_two_folders_do_not_take_each_other_for_their_own(
    tmp_path: Path, migrated: Callable[[Path], None]
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    migrated(folders[0])  # the other one makes its database
    try:
        with ThreadPoolExecutor(2) as threads:
            records = list(threads.map(ensure_server, folders))
        assert records[0].url != records[1].url
        assert all(is_healthy(record) for record in records)
        mistaken = dataclasses.replace(records[0], auth=records[1].auth)
        assert not is_healthy(mistaken), "a server that answers to another log-in is somebody else's"
    finally:
        assert [stop_server(folder) for folder in folders] == [True, True]


def test_record_names_its_process_also_after_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(tmp_path, "server")
    record.write(os.getpid(), {})
    boot, began = psutil.boot_time(), psutil.Process().create_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: began + 3600)  # psutil derives it from the boot time
    assert record.process() == psutil.Process()


def test_stale_record_never_ends_somebody_elses_process(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    home = home_of(tmp_path)
    home.mkdir(parents=True)
    record = Record(home, "server")
    written = record.write(bystander.pid, {"port": 1, "token": "x"})
    assert find_server(tmp_path) is not None
    record.path.write_text(json.dumps({**written, "since_boot": written["since_boot"] - 50}), encoding="utf-8")
    assert find_server(tmp_path) is None
    assert not stop_server(tmp_path)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
