"""`hacpo worker`: supervises a Prefect worker for this machine, and stops it with everything that it started."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from flows.service.deployments import POOL, deploy
from flows.service.host import WORKER_WORDS, HostWatch
from flows.service.processes import (
    Record,
    end_child,
    end_with_parent,
    home_of,
    module_command,
    only_one,
    open_log,
    rotate_logs,
)
from flows.service.schedule import Schedule, host_in, worker_name
from flows.service.server import (
    RECONCILER_LOCK,
    PrefectServer,
    await_server,
    client_environment,
    ensure_server,
    find_server,
    is_healthy,
    keep_reconciler,
    log_in_hint,
    record_reconciler,
    services,
    shared_server,
)
from flows.service.slots import visible_devices
from hacpo_core.config.addresses import tracking_uri
from hacpo_core.config.threads import SLOTS, usable_cores
from hacpo_core.errors import EngineError, ServerError

_log = logging.getLogger(__name__)
RUNS_DIR = "HACPO_RUNS_DIR"
"""environment variable with the folder of all runs, for flows that a worker starts"""
WORKER_CHECK_EVERY_S = 30.0
MAX_DEATHS, DEATHS_WITHIN_S = 5, 600.0
"""a worker that dies this often is not restarted"""


def default_slots() -> int:
    """Number of concurrent experiments: one per GPU; without GPUs, one per core."""
    return len(visible_devices()) or usable_cores()


def find_worker(runs_dir: Path) -> psutil.Process | None:
    """The `hacpo worker` of this runs folder on this machine."""
    return _record(home_of(runs_dir)).process()


def slots_here(runs_dir: Path) -> int | None:
    """Experiments at a time of the `hacpo worker` of this runs folder on this machine; None if there is none."""
    record = _record(home_of(runs_dir))
    return int((record.read() or {}).get("slots", 1)) if record.process() is not None else None


def _record(home: Path) -> Record:
    return Record(home, f"worker.{socket.gethostname()}")  # several machines may share the folder, one worker each


def run_worker(runs_dir: Path, *, num_slots: int) -> bool:
    """Run a worker until SIGTERM or Ctrl-C, then stop it and its experiments, which can be resumed later.

    Prints the address of the Prefect server.

    Returns:
        False if a worker of this folder is already running; then nothing is done.

    Raises:
        EngineError: the worker keeps dying.
        ServerError: the server does not answer.
        ConfigError: MLFLOW_TRACKING_URI contains a password, which error messages would show.
    """
    tracking_uri(None, runs_dir)
    home = home_of(runs_dir)
    record = _record(home)
    with only_one(record.path.with_suffix(".lock")) as is_alone:
        if not is_alone:
            return False
        record.write(os.getpid(), {"slots": num_slots})  # first, so that no other is started
        _end_orphans(runs_dir)
        try:
            with _interrupted_by_sigterm() as is_interrupted:
                deploy(Schedule(ensure_server(runs_dir), runs_dir).client)
                _keep_running(runs_dir, num_slots, is_interrupted)
        finally:
            record.path.unlink(missing_ok=True)
    return True


@contextmanager
def _interrupted_by_sigterm() -> Iterator[Callable[[], bool]]:
    """SIGTERM raises KeyboardInterrupt in the block, and the block ends with it.

    Yields a function that says whether SIGTERM has come: code that is interrupted may lose the exception, or raise
    another one (pydantic does so while it builds a model).
    """
    is_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: is_interrupted
    except Exception as error:
        if is_interrupted:
            raise KeyboardInterrupt from error
        raise
    if is_interrupted:
        raise KeyboardInterrupt


def _end_orphans(runs_dir: Path) -> None:
    """Kill Prefect's workers whose `hacpo worker` was killed.

    They were told to end when it died. If the server died as well, they first wait for it, more than a minute.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_worker = set(process.cmdline()) >= WORKER_WORDS
            if is_worker and process.environ().get(RUNS_DIR) == str(runs_dir.absolute()):
                process.kill()


def _keep_running(runs_dir: Path, num_slots: int, is_interrupted: Callable[[], bool]) -> None:
    command = module_command("prefect", "worker", "start", "--pool", POOL, "--type", "process")
    command += ["--name", worker_name(socket.gethostname(), num_slots), "--limit", str(num_slots)]
    deaths: list[float] = []
    host = HostWatch()
    while not is_interrupted():
        server = await_server(runs_dir)
        print(f"Prefect  {server.url}  ({log_in_hint(runs_dir)})", flush=True)
        schedule = Schedule(server, runs_dir)
        environment = worker_environment(runs_dir, server, num_slots)
        reconciler = TeamReconciler(runs_dir, environment)
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        try:
            while process.poll() is None and not is_interrupted() and not _has_moved(server, runs_dir):
                set_pool_limit(schedule, num_slots)
                rotate_logs(home_of(runs_dir))
                reconciler.keep()
                with suppress(ServerError):  # retried in the next round
                    keep_reconciler(runs_dir)
                    host.check_once(schedule.client)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=WORKER_CHECK_EVERY_S)
            if process.poll() is not None:
                deaths = [death for death in deaths if time.monotonic() - death < DEATHS_WITHIN_S] + [time.monotonic()]
        finally:
            reconciler.end()
            end_child(process)
        if len(deaths) == MAX_DEATHS:
            raise EngineError(
                f"the worker died {MAX_DEATHS} times within {DEATHS_WITHIN_S:.0f} s; see its output above"
            )


def worker_environment(runs_dir: Path, server: PrefectServer, num_slots: int) -> dict[str, str]:
    """Variables of the worker and of the experiments that it starts."""
    return {
        **os.environ,
        **client_environment(home_of(runs_dir), url=server.url, auth=server.auth),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        RUNS_DIR: str(runs_dir.absolute()),
        SLOTS: str(num_slots),
        "PREFECT_WORKER_QUERY_SECONDS": "2" if shared_server() is not None else "0.5",
        "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
        "PREFECT_WORKER_ENABLE_CANCELLATION": "true",
        "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "5",
    }


def _has_moved(server: PrefectServer, runs_dir: Path) -> bool:
    """Whether the folder's server now has another address; a restarted server may have another port."""
    current = find_server(runs_dir)
    return current is not None and current != server and is_healthy(current)


class TeamReconciler:
    """The reconciler of a runs folder with a shared server, run as a child of one worker.

    If that worker ends, another one takes over. A folder's own server starts its own reconciler.
    """

    def __init__(self, runs_dir: Path, environment: dict[str, str]) -> None:
        self._home, self._environment = home_of(runs_dir), environment
        self._command = module_command("flows.service.reconciler", "--runs-dir", str(runs_dir.absolute()))
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Start the reconciler unless it runs, here or on another machine."""
        if shared_server() is None or (self._process is not None and self._process.poll() is None):
            return
        with only_one(self._home / RECONCILER_LOCK) as is_free:
            if not is_free:
                return
        with open_log(self._home / "reconciler.log") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        record_reconciler(self._home, self._process.pid)

    def end(self) -> None:
        """Stop the reconciler if this worker started it."""
        if self._process is not None:
            end_child(self._process)


def set_pool_limit(schedule: Schedule, own_slots: int) -> None:
    """Set the pool's limit to the slots of all online workers; does nothing if the server does not answer."""
    with suppress(ServerError):
        slots = {host_in(worker.name): worker.num_slots for worker in schedule.workers()}
        schedule.set_limit(sum({**slots, socket.gethostname(): own_slots}.values()))


@contextmanager
def worker_here(runs_dir: Path, *, num_slots: int) -> Iterator[Callable[[], None]]:
    """Run a worker for the duration of the block, unless one already serves this folder.

    Yields a function to be called regularly. It starts a worker if the other one has ended or if the worker of this
    block was killed, and raises EngineError, with the last lines of the log, if the worker of this block has failed
    or was killed more than `MAX_DEATHS` times.
    """
    command = module_command("flows.cli", "worker", "--runs-dir", str(runs_dir), "--slots", str(num_slots))
    home = home_of(runs_dir)
    home.mkdir(parents=True, exist_ok=True)
    log_file = home / "worker.log"
    process: subprocess.Popen[bytes] | None = None
    log_offset = num_deaths = 0

    def check() -> None:
        nonlocal process, log_offset, num_deaths
        if process is not None and process.poll() is None:  # it may still be importing, without a record
            return
        if process is not None and process.returncode < 0 and num_deaths < MAX_DEATHS:
            num_deaths += 1
            _log.warning("the worker was killed by %s; starting another one", signal.Signals(-process.returncode).name)
        elif process is not None and process.returncode:  # 0: another worker of this folder was faster
            last_lines = log_file.read_bytes()[log_offset:].decode(errors="replace").strip().splitlines()[-3:]
            raise EngineError(
                f"the worker ended (exit code {process.returncode}; {log_file}): {' / '.join(last_lines)}"
            )
        if find_worker(runs_dir) is not None:
            return
        with open_log(log_file) as log:
            log_offset = log.tell()
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    try:
        check()
        yield check
    finally:
        if process is not None:
            end_child(process, spared=services(runs_dir))
