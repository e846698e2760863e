"""A server that dies, is stopped, or has to move: who brings it back, and whether all find it again."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from prefect.states import Crashed

from flows.records.states import CONFIG_FILE
from flows.service.prefect_server import (
    SERVER_LOCK,
    PrefectServer,
    end_when_idle,
    ensure_server,
    find_server,
    is_healthy,
    kept_server,
    server_environment,
    stop_server,
)
from flows.service.processes import Record, end_family, home_of, only_one
from flows.service.schedule import Schedule
from hacpo_core.errors import ServerError
from tests.waiting import wait_until

QUICK_WORKER = """
import os, sys
from pathlib import Path
from flows.service.prefect_server import ensure_server
from flows.service.worker import run_worker, worker_environment
runs_dir = Path(sys.argv[1])
os.environ |= worker_environment(runs_dir, ensure_server(runs_dir), 1)  # before Prefect is imported
import flows.service.worker_loop as worker_loop
worker_loop.CHECK_EVERY_S = 1.0
run_worker(runs_dir, num_slots=1)
"""
FAMILY = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
words = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *sleep]
print(subprocess.Popen(words).pid, flush=True)
subprocess.run(sleep)
"""


@contextmanager
def occupied(server: PrefectServer) -> Iterator[None]:
    """Something else answers where a server did that is gone."""
    port = int(server.url.rpartition(":")[2])
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        yield
        other.shutdown()


@pytest.fixture
def runs_dir(tmp_path: Path, migrated: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Every other test's server asks for the preferred port as well: one that is stopped here might not get it back.
    monkeypatch.setattr("flows.service.prefect_server.PREFECT_PORT", 0)
    migrated(tmp_path)
    yield tmp_path
    stop_server(tmp_path)


@contextmanager
def quick_worker(runs_dir: Path) -> Iterator[psutil.Popen]:
    """A worker that checks every second."""
    words = [sys.executable, "-c", QUICK_WORKER, str(runs_dir)]
    worker = psutil.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield worker
    finally:
        with suppress(psutil.NoSuchProcess):
            worker.terminate()
        worker.wait(60)


def is_held(path: Path) -> bool:
    if not path.exists():
        return False
    with only_one(path) as is_free:
        return not is_free


def server_process(runs_dir: Path) -> psutil.Process:
    process = Record(home_of(runs_dir), "server").process()
    assert process is not None
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_port_taken",
    [
        pytest.param(False, marks=pytest.mark.soak, id="port is free"),
        pytest.param(True, marks=pytest.mark.system, id="port is taken"),
    ],
)
def test_worker_brings_a_killed_server_back_and_goes_on_with_it(is_port_taken: bool, runs_dir: Path) -> None:
    before = ensure_server(runs_dir)
    schedule = Schedule(before, runs_dir)
    with quick_worker(runs_dir) as worker:
        wait_until(schedule.num_slots, "no worker")
        killed = server_process(runs_dir)
        killed.kill()
        killed.wait(10)
        with occupied(before) if is_port_taken else nullcontext():
            wait_until(
                lambda: (found := find_server(runs_dir)) is not None and is_healthy(found), "nobody brings it back"
            )
        after = find_server(runs_dir)
        assert after is not None
        assert (after.auth, after.url != before.url) == (before.auth, is_port_taken)

        schedule = Schedule(after, runs_dir)
        schedule.root("x").mkdir(parents=True)
        (schedule.root("x") / CONFIG_FILE).touch()  # the run of an experiment that was deleted would be cancelled
        schedule.submit("x", None)
        crashed = schedule.flow_runs()["x"]
        schedule.client.set_flow_run_state(crashed.id, Crashed(), force=True)
        wait_until(lambda: schedule.flow_runs()["x"].id != crashed.id, "it does not reconcile on the new server")
        assert server_process(runs_dir).ppid() == worker.pid
    assert is_healthy(after), "it outlives the worker"


@pytest.mark.system
def test_server_that_is_stopped_stays_so_and_one_that_dies_comes_back(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a command or a page that needs it."""
    monkeypatch.setattr("flows.service.prefect_server.KEEP_EVERY_S", 0.5)
    with kept_server(runs_dir) as server:
        killed = server_process(runs_dir)
        killed.kill()
        killed.wait(10)
        wait_until(lambda: find_server(runs_dir) == server and is_healthy(server), "nobody brings it back")
        stop = [sys.executable, "-m", "flows.cli", "server", "stop", "--runs-dir", str(runs_dir)]
        said = [subprocess.run(stop, capture_output=True, text=True, timeout=120, check=True).stdout for _ in range(2)]
        assert said == ["stopped\n", "no server was running here\n"]
        time.sleep(3.0)
        assert find_server(runs_dir) is None
        assert ensure_server(runs_dir) == server
        shutil.rmtree(home_of(runs_dir))
        time.sleep(3.0)
        assert not home_of(runs_dir).exists(), "nobody makes a deleted folder again"


@pytest.mark.system
def test_server_and_worker_of_a_folder_that_is_deleted_end_and_do_not_make_it_again(runs_dir: Path) -> None:
    client = Schedule(ensure_server(runs_dir), runs_dir).client
    with quick_worker(runs_dir) as worker:
        wait_until(lambda: [pool.name for pool in client.read_work_pools()], "the worker does not begin")
        services = [server_process(runs_dir), worker]
        shutil.rmtree(home_of(runs_dir))
        _, alive = psutil.wait_procs(services, timeout=120)
    assert not alive
    assert not home_of(runs_dir).exists()


@pytest.mark.system
def test_server_that_was_stopped_comes_back_at_its_address_with_its_log_in(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs_dir / "flows.py").write_text("raise SystemExit('flows of a user')", encoding="utf-8")
    monkeypatch.chdir(runs_dir)
    before = ensure_server(runs_dir)
    lock = home_of(runs_dir) / SERVER_LOCK
    assert is_held(lock), "other hosts see that it lives"
    assert stop_server(runs_dir)
    assert not is_held(lock)
    assert find_server(runs_dir) is None
    assert ensure_server(runs_dir) == before


def test_server_of_another_host_is_named_and_no_second_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers on one SQLite file would harm each other, and each host would end its own as unrecorded."""
    home = home_of(tmp_path)
    home.mkdir()
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "gpu-7")
        Record(home, "server").write(os.getpid(), {"port": 1, "token": "t"})
    monkeypatch.setattr("flows.service.prefect_server._LOCK_LIMIT_S", 0.0)
    message = "runs on gpu-7.*`hacpo server stop`"
    with only_one(home / SERVER_LOCK), pytest.raises(ServerError, match=message):
        ensure_server(tmp_path)


@pytest.mark.slow
def test_server_ends_when_nothing_uses_it_unless_it_was_started_to_stay(
    runs_dir: Path, migrated: Callable[[Path], None]
) -> None:
    """In a folder whose name has a meaning in addresses of databases."""
    folder = runs_dir / "a%20b?q=1"
    folder.mkdir()
    migrated(folder)
    try:
        ensure_server(folder)
        end_when_idle(folder, 4.0)
        wait_until(lambda: find_server(folder) is None, "it does not end", limit_s=60)
        server = ensure_server(folder)
        for idle_s in (None, 4.0):  # it was told to stay, and another command changes nothing
            end_when_idle(folder, idle_s)
        time.sleep(8.0)
        assert is_healthy(server)
    finally:
        stop_server(folder)
    assert sorted(path.name for path in runs_dir.iterdir()) == sorted(["prefect", folder.name])


@pytest.mark.slow
def test_what_is_spared_outlives_the_family_with_all_that_it_started() -> None:
    parent = psutil.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    kept = psutil.Process(int(parent.stdout.readline()))
    wait_until(lambda: len(parent.children(recursive=True)) == 3, "not all started")
    doomed = [child for child in parent.children() if child != kept]
    family = [kept, *kept.children()]
    end_family(psutil.Process(parent.pid), kept=[kept])
    parent.wait(10)
    assert not any(child.is_running() for child in doomed)
    assert all(member.is_running() for member in family)
    for member in family:
        member.kill()


IMMEDIATE = """
import asyncio, sqlite3, sys
import flows.service.prefect_process
from prefect.server.database import provide_database_interface
from sqlalchemy import text

async def main() -> None:
    async with provide_database_interface().session_context(begin_transaction=True) as session:
        await session.execute(text("select 1"))
        other = sqlite3.connect(sys.argv[1], timeout=0)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            print(error)

asyncio.run(main())
"""


@pytest.mark.slow
def test_transaction_of_the_server_holds_the_write_lock_from_its_beginning(runs_dir: Path) -> None:
    """One that takes the lock at its first write is refused where another one wrote since its first read."""
    environment = {**os.environ, **server_environment(home_of(runs_dir), port=0, auth="")}
    command = [sys.executable, "-c", IMMEDIATE, str(home_of(runs_dir) / "prefect.db")]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "database is locked"
