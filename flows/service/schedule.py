"""Experiments as runs of a Prefect deployment: submit, resubmit, cancel."""

import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Cancelling

from flows.records.failures import FAILURE_FILE
from flows.records.files import experiments_dir
from flows.records.states import CONFIG_FILE, experiment_status
from flows.service.deployments import connect, deploy
from flows.service.experiment_state import ScheduledRun, state_of
from flows.service.prefect_server import PrefectServer
from flows.service.processes import slots_here
from hacpo_core.errors import HacpoError, ServerError, first_line

FOLDER_TAG = "runs:"
"""prefix of the tag that marks the flow runs of a runs folder"""
_PAGE = 200
"""most flow runs that Prefect returns at once"""
_MAX_PAGES = 5


class RefusedError(HacpoError):
    """A request that is impossible in the run's state; the message says why."""


class Schedule:
    """The experiments of one runs folder on one Prefect server.

    Methods are thread-safe, and raise ServerError if the server does not answer.
    """

    def __init__(self, server: PrefectServer, runs_dir: Path) -> None:
        self._runs_dir = runs_dir.absolute()
        self.tag = f"{FOLDER_TAG}{hashlib.sha256(str(self._runs_dir).encode()).hexdigest()[:12]}"
        """tag of this folder's flow runs, since several folders may share a server"""
        self.client = connect(server.url, server.auth)
        self._mutex = threading.Lock()
        self._deployment: Any = None

    def root(self, experiment: str) -> Path:
        """Folder of an experiment."""
        return experiments_dir(self._runs_dir) / experiment

    def runs(self) -> Mapping[str, ScheduledRun]:
        """Newest run of every experiment of this folder, by experiment id."""
        return {experiment: scheduled_run(run) for experiment, run in self.flow_runs().items()}

    def flow_runs(self) -> dict[str, FlowRun]:
        """Newest flow run of every experiment of this folder, by experiment id."""
        newest: dict[str, FlowRun] = {}
        for run in self.all_flow_runs():
            newest.setdefault(run.parameters.get("experiment", ""), run)
        return newest

    def all_flow_runs(self) -> list[FlowRun]:
        """The flow runs of this folder, the latest start first; the newest 1,000, since what counts is among them."""
        pages = flow_run_pages(self.client, {"tags": {"all_": [self.tag]}})
        return [run for page in itertools.islice(pages, _MAX_PAGES) for run in page]

    def num_slots(self) -> int:
        """Experiments that the worker of this folder trains at a time; 0: there is no worker."""
        return slots_here(self._runs_dir) or 0

    def start(self, experiment: str) -> ScheduledRun:
        """Submit a planned experiment, or resubmit it; training continues from its last committed phase.

        Raises:
            RefusedError: it is complete, queued, being trained, or was never planned.
        """
        newest = self._newest(experiment)
        run = scheduled_run(newest) if newest is not None else None
        state = state_of(experiment_status(self.root(experiment)), run)
        if state.state == "done":
            raise RefusedError(f"{experiment} is complete")
        if state.state == "running":
            raise RefusedError(f"{experiment} is being trained ({state.reason}); a live run cannot be started again")
        if state.state == "queued":
            raise RefusedError(f"{experiment} is already in the queue ({state.reason})")
        if not (self.root(experiment) / CONFIG_FILE).is_file():
            raise RefusedError(f"{experiment} was never planned in {self._runs_dir}; plan it with `hacpo grid`")
        (self.root(experiment) / FAILURE_FILE).unlink(missing_ok=True)
        return self.submit(experiment, newest)

    def submit(self, experiment: str, newest: FlowRun | None, *, tags: Sequence[str] = ()) -> ScheduledRun:
        """Create a flow run for an experiment, without checking its state.

        Args:
            experiment: id.
            newest: its newest flow run, None if it has none.
            tags: additional tags of the new flow run.
        """
        # Two concurrent submissions have the same previous run, hence the same key: the server creates only one run.
        key = f"v1/{self.tag}/{experiment}/{newest.id if newest is not None else ''}"
        with prefect_errors():
            run = self.client.create_flow_run_from_deployment(
                self._deployment_id(),
                parameters={"experiment": experiment, "runs_dir": str(self._runs_dir)},
                tags=[self.tag, *tags],
                idempotency_key=key,
                name=experiment,
            )
        if run.state is not None and run.state.is_crashed():
            # It was submitted before and has crashed; the clock was set back, so it does not count as the newest.
            return self.submit(experiment, run, tags=tags)
        return scheduled_run(run)

    def cancel(self, experiment: str, *, has_worker: bool = True) -> None:
        """Remove an experiment from the queue, or end its process; committed phases are kept.

        A crashed experiment counts as queued, since the reconciler would resubmit it.

        Args:
            experiment: id.
            has_worker: False if no worker is left that would report the end.

        Raises:
            RefusedError: it is neither queued nor running, or it is trained by a command, not by a worker.
        """
        newest = self._newest(experiment)
        run = scheduled_run(newest) if newest is not None else None
        state = state_of(experiment_status(self.root(experiment)), run)
        will_return = state.state == "failed" and state.will_continue  # crashed; the reconciler would resubmit it
        if newest is None or run is None or not (run.is_live or will_return):
            if state.state == "running":
                raise RefusedError(f"{experiment} is trained by a command, not by a worker; stop it there with Ctrl-C")
            raise RefusedError(f"{experiment} is neither in the queue nor running")
        # With Cancelling, Prefect cancels a queued run at once, and the worker ends a run that it has just taken.
        is_ended = will_return or not has_worker
        with prefect_errors():
            self.client.set_flow_run_state(newest.id, Cancelled() if is_ended else Cancelling(), force=is_ended)
        successor = self._newest(experiment)
        if successor is not None and successor.id != newest.id and scheduled_run(successor).is_live:
            self.cancel(experiment, has_worker=has_worker)  # it was resubmitted meanwhile

    def _newest(self, experiment: str) -> FlowRun | None:
        conditions = {"tags": {"all_": [self.tag]}, "name": {"any_": [experiment]}}
        with prefect_errors():
            runs = self.client.read_flow_runs(
                flow_run_filter=FlowRunFilter.model_validate(conditions),
                sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                limit=1,
            )
        return runs[0] if runs else None

    def _deployment_id(self) -> Any:
        with self._mutex:
            if self._deployment is None:
                deploy(self.client)
                self._deployment = self.client.read_deployment_by_name("experiment/experiment").id
            return self._deployment


def flow_run_pages(
    client: SyncPrefectClient, conditions: Mapping[str, Any], *, flow: str | None = None
) -> Iterator[list[FlowRun]]:
    """Flow runs that meet these conditions, page by page, the latest start first.

    Args:
        client: of the server.
        conditions: fields of Prefect's FlowRunFilter.
        flow: name of their flow.

    Raises:
        ServerError: the server does not answer.
    """
    offset = 0
    while offset % _PAGE == 0:
        with prefect_errors():
            page = client.read_flow_runs(
                flow_filter=None if flow is None else FlowFilter.model_validate({"name": {"any_": [flow]}}),
                flow_run_filter=FlowRunFilter.model_validate(conditions),
                sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                limit=_PAGE,
                offset=offset,
            )
        if not page:
            return
        yield page
        offset += len(page)


def scheduled_run(run: FlowRun) -> ScheduledRun:
    """A flow run as `state_of` reads it."""
    state = run.state
    return ScheduledRun(
        id=str(run.id),
        experiment=run.parameters.get("experiment", ""),
        state=state.type.value.capitalize() if state is not None else "Scheduled",
        message=(state.message or "") if state is not None else "",
    )


@contextmanager
def prefect_errors() -> Iterator[None]:
    """Convert errors of Prefect's client in the block into ServerError.

    Raises:
        ServerError: the server does not answer or rejects the request.
    """
    try:
        yield
    except (httpx.HTTPError, PrefectException, OSError) as error:
        raise ServerError(
            f"the request to the Prefect server failed: {first_line(error)}; see `hacpo server status`"
        ) from error
