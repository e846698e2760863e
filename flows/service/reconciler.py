"""Finds flow runs whose process died unnoticed and resubmits their experiments, a few times.

Prefect notices a dead process only while its worker is alive, and 80 to 90 s later by an automation on heartbeats. The
experiment's lock shows at once whether the process of an experiment is alive:

    state of the flow run                       cause                                          action
    Pending for long                            the worker died before it started the process  resubmit
    Running, lock free, no result               the process died                               resubmit
    one of these or Failed, with a result       it died after its work was done                Completed
    Running, lock free, with a failure          it could not report the failure                Failed
    Crashed                                     the worker or Prefect reported a crash         resubmit
    one of these, no folder                     the experiment was deleted                     Cancelled
    Cancelling, lock free                       no worker was left to report it                Cancelled
    Crashed, cancelled before that              the cancellation was reported as a crash       Cancelled
    Running without a worker, lock free         `hacpo train` was killed                       Crashed

To resubmit is to create a new flow run. After MAX_RESTARTS restarts without a committed step between them, the
experiment counts as failed. The process of a cancelled run is killed if its worker does not end it.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.records.failures import record_failure
from flows.records.states import CONFIG_FILE, experiment_status
from flows.service.experiment_state import state_of
from flows.service.schedule import Schedule, flow_run_pages, prefect_errors, scheduled_run
from hacpo_core.errors import EngineError
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)
MAX_RESTARTS = 3
"""consecutive resubmissions of an experiment without progress by at least one step"""
_RESTARTS = "restarts:"
_FLOW_RUN = "PREFECT__FLOW_RUN_ID"
_LIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
_ENDED = (StateType.CRASHED, StateType.FAILED)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a run may appear dead before it counts as dead, in seconds."""

    pending_s: float = 120.0
    """time for a pending run to start its process; imports are slow on a busy machine"""
    running_s: float = 20.0
    """time for a running command without lock: it takes the lock after its first report, and frees it before its last
    one; and for the worker of a cancelled run to end its process"""
    gone_s: float = 3.0
    """time for a run of which no process is left, and no worker that could still start one"""


@dataclass
class Reconciler:
    """Checks the flow runs of one runs folder repeatedly; remembers since when a run has appeared dead."""

    schedule: Schedule
    runs_dir: Path
    timeouts: Timeouts = field(default_factory=Timeouts)
    _created_at: float = field(default_factory=time.time)
    _since: dict[Any, float] = field(default_factory=dict)
    _seen: set[Any] = field(default_factory=set)
    _processes: Mapping[str, list[psutil.Process]] = field(default_factory=dict)

    def check_once(self) -> list[str]:
        """Check every run once.

        Returns:
            one message per action taken.

        Raises:
            ServerError: the server does not answer.
        """
        self._processes, self._seen = processes_of_runs(), set()
        messages = [*self._check_cancelled(), *self._check_experiments()]
        self._since = {key: since for key, since in self._since.items() if key in self._seen}  # the others are alive
        for message in messages:
            _log.warning("%s", message)
        return messages

    def _is_due(self, run: FlowRun, *, even_alive: bool = False) -> bool:
        """Whether the run, which appears dead, has done so in the same state for long enough.

        A run with a process is not due, unless `even_alive`. The process of a command is not known.
        """
        is_alive = str(run.id) in self._processes
        taken_at = run.state.timestamp.timestamp() if run.state is not None else 0.0
        if run.state_type is StateType.PENDING and taken_at >= self._created_at:  # else an earlier worker took it
            timeout_s = self.timeouts.pending_s
        elif is_alive or run.deployment_id is None:
            timeout_s = self.timeouts.running_s
        else:
            timeout_s = self.timeouts.gone_s
        key = (run.id, run.state_id or (run.state.id if run.state is not None else None))
        self._seen.add(key)
        since = self._since.setdefault(key, time.monotonic())
        return time.monotonic() - since >= timeout_s and (even_alive or not is_alive)

    def _check_cancelled(self) -> Iterator[str]:
        """Kill processes of cancelled runs."""
        ids = {"any_": list(self._processes)}
        for run in self._runs(StateType.CANCELLING, StateType.CANCELLED, id=ids) if self._processes else ():
            # While the run is Cancelling, its worker may be about to end it.
            if run.state_type is StateType.CANCELLED or self._is_due(run, even_alive=True):
                yield from self._kill(run, self._processes[str(run.id)])

    def _kill(self, run: FlowRun, processes: Sequence[psutil.Process]) -> Iterator[str]:
        """Kill the run's main process; its child processes then exit by themselves and can clean up."""
        if run.state_type is StateType.CANCELLING:
            self._set(run, Cancelled(message="ended"))
        for process in processes:
            with suppress(psutil.Error):
                if "prefect.engine" in process.cmdline():
                    process.kill()  # on SIGTERM it would report a crash instead of the cancellation
                    yield f"{run.name}: process {process.pid} killed; the run is cancelled"

    def _check_experiments(self) -> Iterator[str]:
        for experiment, run in itertools.chain(self.schedule.flow_runs().items(), self._command_runs()):
            if experiment and run.state is not None and run.state.type in (*_LIVE, *_ENDED):
                for message in self._reconcile(experiment, run, run.state.type):
                    yield f"{experiment}: {message}"

    def _command_runs(self) -> Iterator[tuple[str, FlowRun]]:
        """Runs that `hacpo train` made, without a worker; they are not restarted."""
        for run in self._runs(*_LIVE, flow="experiment", deployment_id={"is_null_": True}):
            if Path(run.parameters.get("runs_dir", "")) == self.runs_dir.absolute():
                yield run.parameters.get("experiment", ""), run

    def _reconcile(self, experiment: str, run: FlowRun, kind: StateType) -> Iterator[str]:
        status = experiment_status(self.schedule.root(experiment))
        if status.state == "running" or (kind in _LIVE and not self._is_due(run)):
            return
        state = state_of(status, scheduled_run(run), is_dead=True)
        if kind is StateType.CANCELLING:
            self._set(run, Cancelled(message="ended"))
            yield "cancelled; its process is gone"
        elif state.state == "done":
            self._set(run, Completed(message="its result exists"))
            yield "completed; its result exists"
        elif state.will_continue and run.deployment_id is None:
            self._set(run, Crashed(message="it was killed"))
            yield "the command that trained it is gone"
        elif state.will_continue:
            yield self._resubmit(experiment, run, state.reason.partition("\n")[0].rstrip(".") or "it crashed")
        elif kind is StateType.RUNNING:  # other failures are left for the user to inspect
            self._set(run, Failed(message=state.reason))
            yield f"failed, and could not report it: {state.reason}"

    def _resubmit(self, experiment: str, run: FlowRun, reason: str) -> str:
        # It may have been cancelled since it was read, or before Prefect reported a crash.
        if self._was_cancelled(run):
            self._set(run, Cancelled(message="ended"))
            return "cancelled; its process is gone"
        root = self.schedule.root(experiment)
        if not (root / CONFIG_FILE).is_file():
            self._set(run, Cancelled(message="its experiment was deleted"))
            return f"{reason}; cancelled, because its experiment was deleted"
        step = StepStore(root).last_step()
        restarts = _restarts(run, step)
        self._set(run, Crashed(message=reason))
        if restarts >= MAX_RESTARTS:
            error = EngineError(f"{reason}, {restarts + 1} times; retry it with `hacpo grid --run all`")
            record_failure(root, error)
            return f"{reason}; given up after {restarts} restarts"
        # Not by rescheduling the same run: a worker that still waits for the dead process would take it twice and fail.
        tags = [f"{_RESTARTS}{restarts + 1}@{step}"]
        self.schedule.submit(experiment, run, tags=tags)
        return f"{reason}; resubmitted ({restarts + 1} of {MAX_RESTARTS})"

    def _was_cancelled(self, run: FlowRun) -> bool:
        """Whether the run was cancelled and not rescheduled (on Prefect's web page) since then."""
        with prefect_errors():
            states = self.schedule.client.read_flow_run_states(run.id)  # oldest first
        for state in reversed(states):
            if state.type in (StateType.SCHEDULED, StateType.CANCELLING, StateType.CANCELLED):
                return state.type is not StateType.SCHEDULED
        return False

    def _runs(self, *kinds: StateType, flow: str | None = None, **conditions: Any) -> list[FlowRun]:
        """Flow runs in one of these states that meet these conditions, as `flow_run_pages`."""
        conditions["state"] = {"type": {"any_": [kind.value for kind in kinds]}}
        pages = flow_run_pages(self.schedule.client, conditions, flow=flow)
        return [run for page in pages for run in page]

    def _set(self, run: FlowRun, state: State[Any]) -> None:
        with prefect_errors():
            self.schedule.client.set_flow_run_state(run.id, state, force=True)


def processes_of_runs() -> dict[str, list[psutil.Process]]:
    """Live processes of this host's flow runs, by the run's id."""
    found: dict[str, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):  # it is gone, or does not belong to a flow run
            if process.status() != psutil.STATUS_ZOMBIE:
                found[str(UUID(process.environ().get(_FLOW_RUN, "")))].append(process)
    return found


def _restarts(run: FlowRun, step: int) -> int:
    """Number of consecutive restarts since the experiment last progressed to `step`."""
    for tag in run.tags:
        if tag.startswith(_RESTARTS):
            number, _, restarted_at = tag.removeprefix(_RESTARTS).partition("@")
            return int(number) if int(restarted_at) >= step else 0
    return 0
