"""What `hacpo worker` does: Prefect's worker in a thread, and repeated checks of server, flow runs and processes."""

import asyncio
import logging
import os
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from prefect.client.schemas.responses import WorkerFlowRunResponse
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
from prefect.utilities.processutils import command_to_string, get_sys_executable
from prefect.workers.process import ProcessWorker, ProcessWorkerResult

from flows.service.deployments import POOL, deploy
from flows.service.prefect_server import PrefectServer, ensure_server, log_in_hint, server_process, use_server
from flows.service.preloaded import Preloaded
from flows.service.processes import end_descendants, inode_of, worker_record
from flows.service.reconciler import Reconciler
from flows.service.schedule import Schedule

_log = logging.getLogger(__name__)
CHECK_EVERY_S = 5.0
END_LIMIT_S = 10.0
"""time for Prefect's worker to end after its runs have"""


def worker_of_slots(num_slots: int, forks: Preloaded | None = None) -> ProcessWorker:
    """Prefect's worker, which asks for flow runs only while a slot is free: each answer lists up to 200 that wait.

    Args:
        num_slots: number of concurrent flow runs.
        forks: what forks flow runs that have neither a command nor variables of their own; none: Prefect starts all.
    """
    worker = ProcessWorker(POOL, name=socket.gethostname(), limit=num_slots)
    ask, run = worker._get_scheduled_flow_runs, worker.run
    usual_command = command_to_string([get_sys_executable(), "-m", "prefect.engine"])

    async def ask_if_free() -> list[WorkerFlowRunResponse]:
        return await ask() if worker.limiter.available_tokens else []

    async def run_or_fork(flow_run: Any, configuration: Any, task_status: Any = None) -> ProcessWorkerResult:
        usual = os.environ | get_current_settings().to_environment_variables(exclude_unset=True)
        own = [name for name, value in configuration.env.items() if usual.get(name) != value]
        is_usual = configuration.command == usual_command and all(name.startswith("PREFECT__") for name in own)
        if forks is not None and is_usual:  # some variables are read at import, before the fork
            configuration.command = forks.command
        return await run(flow_run, configuration, task_status)

    worker._get_scheduled_flow_runs, worker.run = ask_if_free, run_or_fork  # type: ignore[method-assign]
    return worker


class _Service:
    """What a worker does with one server: Prefect's worker in a thread, whose child processes are the flow runs."""

    def __init__(self, server: PrefectServer, runs_dir: Path, num_slots: int, forks: Preloaded | None) -> None:
        """Register what is missing on the server."""
        self.server = server
        self._runs_dir, self._num_slots, self._forks = runs_dir, num_slots, forks
        use_server(server, runs_dir)
        print(f"Prefect  {server.url}  ({log_in_hint(runs_dir)})", flush=True)
        schedule = Schedule(server, runs_dir)
        deploy(schedule.client)
        self.reconciler = Reconciler(schedule, runs_dir)
        self._task: asyncio.Task[None] | None = None
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="Prefect's worker", daemon=True)

    def start(self) -> None:
        """Start to take flow runs, once."""
        self._thread.start()

    def _run(self) -> None:
        try:
            with temporary_settings({PREFECT_API_URL: f"{self.server.url}/api"}):  # a restarted server may have moved
                asyncio.run(self._work())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001  whatever it was, the next check starts another one
            _log.warning("Prefect's worker ended: %s: %s", type(error).__name__, error)
        finally:
            self._has_begun.set()

    async def _work(self) -> None:
        self._task = asyncio.current_task()
        self._has_begun.set()
        await worker_of_slots(self._num_slots, self._forks).start(printer=partial(print, flush=True))

    def has_ended(self, limit_s: float) -> bool:
        """Whether Prefect's worker has ended, or does so within this time."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """Stop taking flow runs, end those that run, and wait for the thread."""
        if self._thread.ident is None:  # never started
            return
        if self._has_begun.wait(END_LIMIT_S) and self._task is not None:
            with suppress(RuntimeError):  # its loop has just been closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        forking = None if self._forks is None else self._forks.process
        kept = [process for process in (server_process(self._runs_dir), forking) if process is not None]
        end_descendants(kept=kept)
        if not self.has_ended(END_LIMIT_S):
            _log.warning("Prefect's worker did not end within %.0f s", END_LIMIT_S)
        end_descendants(kept=kept)  # those that it started before it was cancelled


def serve(runs_dir: Path, num_slots: int, is_over: threading.Event, forks: Preloaded | None) -> None:
    """Train what is in the queue, and check all else, until told to end or until the runs folder is deleted.

    Args:
        runs_dir: folder of all runs.
        num_slots: number of concurrent experiments.
        is_over: set to end.
        forks: what forks flow runs; none: Prefect starts them.
    """
    worker_lock = worker_record(runs_dir).path.with_suffix(".lock")
    inode = inode_of(worker_lock)
    service: _Service | None = None
    told = ""
    try:
        while not is_over.is_set():
            if inode_of(worker_lock) != inode:
                _log.warning("%s was deleted; the worker ends", runs_dir)
                return
            try:
                server = ensure_server(runs_dir)
                if service is not None and (service.has_ended(0.0) or service.server != server):
                    service.end()
                    service = None
                if service is None:
                    service = _Service(server, runs_dir, num_slots, forks)
                    service.start()
                service.reconciler.check_once()
                told = ""
            except Exception as error:  # noqa: BLE001  the worker must survive every error
                if str(error) != told:
                    _log.warning("check failed, will retry: %s: %s", type(error).__name__, error)
                told = str(error)
            is_over.wait(CHECK_EVERY_S)
    finally:
        if service is not None:
            service.end()
