"""Experiments as runs of a Prefect deployment: submitted once, retried, cancelled, put before others, or refused."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, Worker
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled, Cancelling

from flows.records.failures import FAILURE_FILE
from flows.records.folders import experiments_dir
from flows.records.states import CONFIG_FILE, standing_of
from flows.service.deployments import POOL, connect, deploy
from flows.service.server import PrefectServer
from hacpo_core.errors import HacpoError, ServerError, first_line

LIVE = ("Scheduled", "Pending", "Running", "Paused", "Cancelling")
"""states of a run that a worker has or will have; the others are Completed, Failed, Crashed, Cancelled"""
FOLDER_TAG = "runs:"
"""begins the tag by which a runs folder knows its flow runs"""
_WORKER_LABEL = "prefect.worker.name"
_PAGE = 200


class RefusedError(HacpoError):
    """What was asked of a run cannot be done in its state; the message says why."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """The newest flow run of an experiment."""

    id: str
    """of the flow run, for links into Prefect's page"""
    experiment: str
    state: str
    """Prefect's name of the state's type, capitalised: one of LIVE, or Completed, Failed, Crashed, Cancelled"""
    message: str
    priority: str
    num_starts: int

    @property
    def is_live(self) -> bool:
        """Whether a worker has it or will have it."""
        return self.state in LIVE


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker that Prefect has heard of lately."""

    name: str
    num_slots: int


class Schedule:
    """The experiments of one runs folder on one Prefect server; every method may be called from any thread.

    Every method raises ServerError when the server does not answer.
    """

    def __init__(self, server: PrefectServer, runs_dir: Path) -> None:
        self._runs_dir = runs_dir.absolute()
        self.tag = f"{FOLDER_TAG}{hashlib.sha256(str(self._runs_dir).encode()).hexdigest()[:12]}"
        """marks the flow runs of this folder on a server that several folders share"""
        self.client = connect(server.url, server.auth)
        self._mutex = threading.Lock()
        self._deployment: Any = None

    def root(self, experiment: str) -> Path:
        """Folder of an experiment."""
        return experiments_dir(self._runs_dir) / experiment

    def runs(self) -> Mapping[str, ScheduledRun]:
        """Newest run of every experiment of this folder, by experiment id."""
        return {experiment: _described(run) for experiment, run in self.flow_runs().items()}

    def flow_runs(self) -> dict[str, FlowRun]:
        """The same, as Prefect describes them."""
        found: dict[str, FlowRun] = {}
        for run in self.all_flow_runs():
            found.setdefault(run.parameters.get("experiment", ""), run)
        return found

    def all_flow_runs(self) -> list[FlowRun]:
        """Every flow run of this folder that was ever submitted, the newest first."""
        found: list[FlowRun] = []
        while len(found) % _PAGE == 0:
            with answers():
                page = self.client.read_flow_runs(
                    flow_run_filter=FlowRunFilter.model_validate({"tags": {"all_": [self.tag]}}),
                    sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                    limit=_PAGE,
                    offset=len(found),
                )
            if not page:
                break
            found += page
        return found

    def workers(self) -> Sequence[WorkerRecord]:
        """Workers that are alive."""
        found: list[Worker] = []
        with answers(), suppress(ObjectNotFound):  # a fresh server has no pool yet
            found = self.client.read_workers_for_work_pool(POOL)
        alive = [worker for worker in found if worker.status == "ONLINE"]
        return [WorkerRecord(worker.name, slots_of(worker.name)) for worker in alive]

    def set_limit(self, num_runs: int) -> None:
        """Most runs of the pool at a time, on all machines together."""
        with answers():
            if self.client.read_work_pool(POOL).concurrency_limit != num_runs:
                self.client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=num_runs))

    def start(self, experiment: str, priority: str = "normal") -> ScheduledRun:
        """Let a worker train a planned experiment from wherever its store stands: submit it, or submit it again.

        Raises:
            RefusedError: it is complete, or scheduled, or being trained, or was never planned.
        """
        standing = standing_of(self.root(experiment))
        if standing.state == "done":
            raise RefusedError(f"{experiment} is complete")
        if standing.state == "running":
            raise RefusedError(f"{experiment} is being trained ({standing.reason}); a live run cannot be started again")
        if not (self.root(experiment) / CONFIG_FILE).is_file():
            raise RefusedError(f"{experiment} was never planned in {self._runs_dir}; `hacpo grid` does that")
        newest = self._newest(experiment)
        if newest is not None and _described(newest).is_live:
            raise RefusedError(f"{experiment} is in the queue already ({_described(newest).state.lower()})")
        (self.root(experiment) / FAILURE_FILE).unlink(missing_ok=True)
        return self.submit(experiment, priority, newest)

    def submit(
        self, experiment: str, priority: str, newest: FlowRun | None, *, tags: Sequence[str] = ()
    ) -> ScheduledRun:
        """Put it into a queue, whatever its state.

        Args:
            experiment: id.
            priority: queue.
            newest: its newest flow run, None where it has none.
            tags: of the new flow run.
        """
        # Two that submit the same at once name the same run before theirs, so the server makes one run of both.
        key = f"v1/{self.tag}/{experiment}/{newest.id if newest is not None else ''}"
        with answers():
            run = self.client.create_flow_run_from_deployment(
                self._deployment_id(),
                parameters={"experiment": experiment, "runs_dir": str(self._runs_dir)},
                tags=[self.tag, *tags],
                idempotency_key=key,
                work_queue_name=priority,
                name=experiment,
            )
        return _described(run)

    def cancel(self, experiment: str, *, has_worker: bool = True) -> None:
        """Take it off the queue, which a crashed one comes back to, or end its process; what it committed stays.

        Args:
            experiment: id.
            has_worker: False where this host's worker has ended with all that it ran, so that nobody will report the
                end.

        Raises:
            RefusedError: nothing of it is scheduled or running; or it is trained by a command that no worker owns; or,
                without a worker here, by another host's.
        """
        newest = self._newest(experiment)
        state = _described(newest).state if newest is not None else ""
        standing = standing_of(self.root(experiment)).state
        comes_back = state == "Crashed" and standing == "missing"  # the reconciler submits it again
        if newest is None or not (state in LIVE or comes_back):
            if standing == "running":
                raise RefusedError(f"{experiment} is trained by a command, not by a worker; end it there with Ctrl-C")
            raise RefusedError(f"{experiment} is neither in the queue nor running")
        host = socket.gethostname() if state == "Scheduled" else host_of(newest) or socket.gethostname()
        if not has_worker and host != socket.gethostname():
            raise RefusedError(f"{experiment} is trained by the worker of {host}")
        # Told to be Cancelling, a run that waits is Cancelled at once, and one that was just taken its worker ends.
        is_ended = comes_back or (not has_worker and state != "Scheduled")
        with answers():
            self.client.set_flow_run_state(newest.id, Cancelled() if is_ended else Cancelling(), force=is_ended)
        again = self._newest(experiment)
        if (
            again is not None and again.id != newest.id and _described(again).is_live
        ):  # another took its place meanwhile
            self.cancel(experiment, has_worker=has_worker)

    def set_priority(self, experiment: str, priority: str) -> None:
        """Put it into another queue.

        Raises:
            RefusedError: it is not waiting in a queue.
        """
        newest = self._newest(experiment)
        if newest is None or _described(newest).state != "Scheduled":
            raise RefusedError(f"{experiment} does not wait in a queue, so it has no priority to change")
        if _described(newest).priority == priority:
            return
        # Prefect moves no run between queues: a new one takes its place, unless a worker was faster. In this order, so
        # that a failure in between leaves one run too many, which finds the experiment locked or done, and never none.
        moved = self.submit(experiment, priority, newest)
        with answers():
            state: State[Any] = Cancelled(message=f"moved to the {priority} queue")
            answer: OrchestrationResult[Any] = self.client.set_flow_run_state(newest.id, state)
            others = [one for one in self.client.read_flow_run_states(newest.id) if one.message != state.message]
            was_cancelled = any(
                one.is_cancelled() or one.is_cancelling() for one in others
            )  # Prefect takes a second one
            if answer.status.value == "ACCEPT" and not was_cancelled:
                return
            self.client.delete_flow_run(UUID(moved.id))
        why = "it was cancelled meanwhile" if was_cancelled else "a worker has just taken it"
        raise RefusedError(f"{experiment} is no longer waiting: {why}")

    def _newest(self, experiment: str) -> FlowRun | None:
        wanted = {"tags": {"all_": [self.tag]}, "name": {"any_": [experiment]}}
        with answers():
            runs = self.client.read_flow_runs(
                flow_run_filter=FlowRunFilter.model_validate(wanted), sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1
            )
        return runs[0] if runs else None

    def _deployment_id(self) -> Any:
        with self._mutex:
            if self._deployment is None:
                deploy(self.client)
                self._deployment = self.client.read_deployment_by_name("experiment/experiment").id
            return self._deployment


def worker_name(host: str, num_slots: int) -> str:
    """What a worker is called, so that every page shows how many runs it takes at a time."""
    return f"{host} ({num_slots} at a time)"


def slots_of(name: str) -> int:
    """Runs that a worker of this name takes at a time; 1 for a worker of somebody else's."""
    number = name.rpartition("(")[2].partition(" ")[0]
    return int(number) if number.isdigit() else 1


def host_of(run: FlowRun) -> str | None:
    """Host whose worker took the run, None where none has."""
    name = run.labels.get(_WORKER_LABEL)
    return None if name is None else str(name).rpartition(" (")[0] or str(name)


def _described(run: FlowRun) -> ScheduledRun:
    state = run.state
    return ScheduledRun(
        id=str(run.id),
        experiment=run.parameters.get("experiment", ""),
        state=state.type.value.capitalize() if state is not None else "Scheduled",
        message=(state.message or "") if state is not None else "",
        priority=run.work_queue_name or "normal",
        num_starts=run.run_count,
    )


@contextmanager
def answers() -> Iterator[None]:
    """Turn what a silent or refusing server raises into one error.

    Raises:
        ServerError: instead.
    """
    try:
        yield
    except (httpx.HTTPError, PrefectException, OSError) as error:
        raise ServerError(
            f"the Prefect server does not do what was asked: {first_line(error)}; see `hacpo server status`"
        ) from error
