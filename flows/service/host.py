"""Checks the flow runs of this host: kills processes of cancelled runs, reports runs whose process is gone.

Processes are only visible on their own host, so every `hacpo worker` checks its host. Experiments hold a lock that
shows whether they are alive (`flows.service.reconciler`). Evaluations, grids, reports and runs started from Prefect's
web page have no lock: without this check, a dead one would occupy a slot of the pool forever.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Crashed

from flows.service.deployments import POOL
from flows.service.processes import worker_record
from flows.service.schedule import FOLDER_TAG, flow_run_pages, host_of, prefect_errors

_log = logging.getLogger(__name__)
_FLOW_RUN = "PREFECT__FLOW_RUN_ID"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a run may appear dead before it counts as dead, in seconds."""

    pending_s: float = 120.0
    """time for a pending run to start its process; imports are slow on a busy machine"""
    running_s: float = 20.0
    """time for a running run without lock or process: it takes the lock after its first report, and frees it before
    its last one"""
    gone_s: float = 3.0
    """time for a run of this host of which no process is left, and no worker that could still start one"""


@dataclass(frozen=True, slots=True)
class HostProcesses:
    """Live processes of this host: those of flow runs by the run's id, and when the folder's worker was started."""

    of_runs: Mapping[str, list[psutil.Process]]
    worker_since: float | None
    """seconds since the epoch; None: no worker runs"""

    @classmethod
    def scan(cls, runs_dir: Path) -> HostProcesses:
        """Look at every process once."""
        of_runs: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in psutil.process_iter():
            with suppress(psutil.Error, ValueError):  # it is gone, or does not belong to a flow run
                if process.status() != psutil.STATUS_ZOMBIE:
                    of_runs[str(UUID(process.environ().get(_FLOW_RUN, "")))].append(process)
        worker, since = worker_record(runs_dir).process(), None
        with suppress(psutil.Error):
            since = None if worker is None else worker.create_time()
        return cls(of_runs, since)

    def has_lost(self, run: FlowRun) -> bool:
        """Whether the run belongs to this host, and no process of it is left or about to be started.

        Pending runs of a folder's experiments are started by this folder's worker alone.
        """
        if str(run.id) in self.of_runs or host_of(run) != socket.gethostname() or run.state is None:
            return False
        if run.state_type is not StateType.PENDING:
            return True
        is_experiment = any(tag.startswith(FOLDER_TAG) for tag in run.tags)
        return is_experiment and (self.worker_since is None or self.worker_since > run.state.timestamp.timestamp())


@dataclass
class Suspects:
    """Remembers since when runs of a folder have appeared dead, from round to round."""

    runs_dir: Path
    timeouts: Timeouts = field(default_factory=Timeouts)
    _since: dict[Any, float] = field(default_factory=dict)
    _before: dict[Any, float] = field(default_factory=dict)
    processes: HostProcesses = field(default_factory=lambda: HostProcesses({}, None))

    def __len__(self) -> int:
        return len(self._since)

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """Look at the host's processes; runs that do not appear dead in the block are forgotten.

        If an error ends the block early, nothing is forgotten.
        """
        self._before, self._since = self._since, {}
        self.processes = HostProcesses.scan(self.runs_dir)
        try:
            yield
        except BaseException:
            self._since = self._before | self._since
            raise

    def is_due(self, run: FlowRun, *, even_alive: bool = False) -> bool:
        """Whether the run, which appears dead, has done so in the same state for long enough.

        A run with a process on this host is not due, unless `even_alive`.
        """
        if self.processes.has_lost(run):
            timeout_s = self.timeouts.gone_s
        elif run.state_type is StateType.PENDING or host_of(run) not in (None, socket.gethostname()):
            timeout_s = self.timeouts.pending_s  # another host's process may be alive without the lock
        else:
            timeout_s = self.timeouts.running_s
        key, now = (run.id, run.state_id or (run.state.id if run.state is not None else None)), time.monotonic()
        since = self._before.get(key, now)
        if now - since >= timeout_s and (even_alive or str(run.id) not in self.processes.of_runs):
            return True
        self._since[key] = since
        return False


@dataclass
class HostWatch:
    """Checks this host's flow runs repeatedly."""

    suspects: Suspects

    def check_once(self, client: SyncPrefectClient) -> list[str]:
        """`check` as a round of its own."""
        with self.suspects.one_round():
            return self.check(client)

    def check(self, client: SyncPrefectClient) -> list[str]:
        """Check every process and every run once.

        Returns:
            one message per action taken.

        Raises:
            ServerError: the server does not answer.
        """
        processes = self.suspects.processes.of_runs
        messages: list[str] = []
        for run in _cancelled_runs(client, list(processes)):
            # While the run is Cancelling, its worker may be about to end it.
            if run.state_type is StateType.CANCELLED or self.suspects.is_due(run, even_alive=True):
                messages += _end(client, run, processes[str(run.id)])
        for run in _live_runs_without_lock(client):
            if str(run.id) in processes or host_of(run) not in (None, socket.gethostname()):
                continue
            if self.suspects.is_due(run):
                is_cancelled = run.state_type is StateType.CANCELLING
                state: State[Any] = (
                    Cancelled(message="ended") if is_cancelled else Crashed(message="its process is gone")
                )
                with prefect_errors():
                    client.set_flow_run_state(run.id, state, force=True)
                messages.append(f"{run.name}: {'cancelled' if is_cancelled else 'crashed'}; its process is gone")
        for message in messages:
            _log.warning("%s", message)
        return messages


def _cancelled_runs(client: SyncPrefectClient, ids: Sequence[str]) -> list[FlowRun]:
    states = {"type": {"any_": ["CANCELLING", "CANCELLED"]}}
    pages = flow_run_pages(client, {"id": {"any_": ids}, "state": states}) if ids else ()
    return [run for page in pages for run in page]


def _live_runs_without_lock(client: SyncPrefectClient) -> list[FlowRun]:
    states = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
    pages = flow_run_pages(client, {"state": states}, pool=POOL)
    return [run for page in pages for run in page if not any(tag.startswith(FOLDER_TAG) for tag in run.tags)]


def _end(client: SyncPrefectClient, run: FlowRun, processes: Sequence[psutil.Process]) -> Iterator[str]:
    """Kill the run's main process; its child processes then exit by themselves and can clean up."""
    if run.state_type is StateType.CANCELLING:
        with prefect_errors():
            client.set_flow_run_state(run.id, Cancelled(message="ended"), force=True)
    for process in processes:
        with suppress(psutil.Error):
            if "prefect.engine" in process.cmdline():
                process.kill()  # on SIGTERM it would report a crash instead of the cancellation
                yield f"{run.name}: process {process.pid} killed; the run is cancelled"
