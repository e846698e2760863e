"""Checks the flow runs of this host: kills processes of cancelled runs, reports runs whose process is gone.

Processes are only visible on their own host, so every `hacpo worker` checks its host, and so does the reconciler in
case the worker is dead. Experiments hold a lock that shows whether they are alive (`flows.service.reconciler`).
Evaluations, grids, reports and runs started from Prefect's web page have no lock: without this check, a dead one would
occupy a slot of the pool forever.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Crashed

from flows.service.deployments import POOL
from flows.service.schedule import FOLDER_TAG, answers, host_of

_log = logging.getLogger(__name__)
_FLOW_RUN = "PREFECT__FLOW_RUN_ID"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a run may appear dead before it counts as dead, in seconds."""

    pending_s: float = 120.0
    """time for a pending run to start its process; imports are slow on a busy machine"""
    running_s: float = 20.0
    """time for a running run without lock or process: it takes the lock after its first report, and frees it before
    its last one"""


def processes_of_runs() -> dict[str, list[psutil.Process]]:
    """Live processes of this host, by the id of the flow run that they were started for."""
    processes = defaultdict(list)
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):  # it is gone, or does not belong to a flow run
            run = UUID(process.environ().get(_FLOW_RUN, ""))
            if process.status() != psutil.STATUS_ZOMBIE:
                processes[str(run)].append(process)
    return processes


@dataclass
class HostWatch:
    """Checks this host's flow runs repeatedly; remembers since when a run has appeared dead."""

    patience: Patience = field(default_factory=Patience)
    _since: dict[Any, float] = field(default_factory=dict)

    def look(self, client: SyncPrefectClient) -> list[str]:
        """Check every process and every run once.

        Returns:
            one message per action taken.

        Raises:
            ServerError: the server does not answer.
        """
        before, self._since = self._since, {}
        processes = processes_of_runs()
        done: list[str] = []
        for run in _cancelled_runs(client, list(processes)):
            # While the run is Cancelling, its worker may be about to end it.
            if run.state_type is StateType.CANCELLED or self._is_due(run, self.patience.running_s, before):
                done += _end(client, run, processes[str(run.id)])
        for run in _live_runs_without_lock(client):
            host = host_of(run)
            if str(run.id) in processes or host not in (None, socket.gethostname()):
                continue
            is_short = run.state_type is not StateType.PENDING and host is not None
            if self._is_due(run, self.patience.running_s if is_short else self.patience.pending_s, before):
                is_cancelled = run.state_type is StateType.CANCELLING
                state: State[Any] = (
                    Cancelled(message="ended") if is_cancelled else Crashed(message="its process is gone")
                )
                with answers():
                    client.set_flow_run_state(run.id, state, force=True)
                done.append(f"{run.name}: {'cancelled' if is_cancelled else 'crashed'}; its process is gone")
        for message in done:
            _log.warning("%s", message)
        return done

    @property
    def num_suspects(self) -> int:
        """Number of runs that appear dead, but not yet for long enough."""
        return len(self._since)

    def _is_due(self, run: FlowRun, patience_s: float, before: Mapping[Any, float]) -> bool:
        key, now = (run.id, run.state_id), time.monotonic()
        since = before.get(key, now)
        if now - since >= patience_s:
            return True
        self._since[key] = since
        return False


def _cancelled_runs(client: SyncPrefectClient, ids: Sequence[str]) -> list[FlowRun]:
    return _read(client, id={"any_": ids}, state={"type": {"any_": ["CANCELLING", "CANCELLED"]}}) if ids else []


def _live_runs_without_lock(client: SyncPrefectClient) -> Iterator[FlowRun]:
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    for run in _read(client, pool, state={"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}):
        if not any(tag.startswith(FOLDER_TAG) for tag in run.tags):
            yield run


def _read(client: SyncPrefectClient, pool: WorkPoolFilter | None = None, **conditions: Any) -> list[FlowRun]:
    with answers():
        return client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(conditions), work_pool_filter=pool)


def _end(client: SyncPrefectClient, run: FlowRun, processes: Sequence[psutil.Process]) -> Iterator[str]:
    """Kill the run's main process; its child processes then exit by themselves and can clean up."""
    if run.state_type is StateType.CANCELLING:
        with answers():
            client.set_flow_run_state(run.id, Cancelled(message="ended"), force=True)
    for process in processes:
        with suppress(psutil.Error):
            if "prefect.engine" in process.cmdline():
                process.kill()  # on SIGTERM it would report a crash instead of the cancellation
                yield f"{run.name}: process {process.pid} killed; the run is cancelled"
