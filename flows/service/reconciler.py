"""Finds flow runs whose process died unnoticed and resubmits their experiments, a few times.

Prefect notices a dead process only while its worker is alive. The experiment's lock shows whether the process is alive:

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
experiment counts as failed. What an ended experiment did not send to MLflow is sent. Flow runs that hold no
experiment lock, and processes that outlive their cancelled run, are handled by `flows.service.host`. One worker of a
runs folder does all this, between its other checks (`flows.service.serving`).
"""

from __future__ import annotations

import logging
import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.records.failures import record_failure
from flows.records.mlflow_address import unsent_experiments
from flows.records.states import CONFIG_FILE, ExperimentStatus, experiment_status
from flows.service.experiment_state import state_of
from flows.service.host import HostWatch, Suspects, Timeouts
from flows.service.processes import end_with_parent, module_command
from flows.service.schedule import Schedule, flow_run_pages, prefect_errors, scheduled_run
from hacpo_core.errors import EngineError
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)
MAX_RESTARTS = 3
"""consecutive resubmissions of an experiment without progress by at least one step"""
SLACK_S = 10.0
SEND_EVERY_S = 60.0
"""time between two attempts to send to MLflow what ended experiments did not"""
_RESTARTS = "restarts:"
_STATES_TO_CHECK = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.CRASHED, StateType.FAILED)


@dataclass
class Reconciler:
    """Checks the flow runs of one runs folder repeatedly; remembers since when a run has appeared dead."""

    schedule: Schedule
    runs_dir: Path
    timeouts: Timeouts = field(default_factory=Timeouts)
    sender: subprocess.Popen[bytes] | None = None
    """process that sends to MLflow what ended experiments did not"""
    _send_at: float = -math.inf

    def __post_init__(self) -> None:
        self._suspects = Suspects(self.runs_dir, self.timeouts)
        self._host = HostWatch(self._suspects)

    def check_once(self) -> list[str]:
        """Check every run once.

        Returns:
            one message per action taken.

        Raises:
            ServerError: the server does not answer.
        """
        with self._suspects.one_round():
            return self._check()

    def _check(self) -> list[str]:
        messages = self._host.check(self.schedule.client)
        for experiment, run in self.schedule.flow_runs().items():
            if not experiment or run.state is None or run.state.type not in _STATES_TO_CHECK:
                continue
            status = experiment_status(self.schedule.root(experiment))
            for message in self._reconcile(experiment, run, status):
                _log.warning("%s: %s", experiment, message)
                messages.append(f"{experiment}: {message}")
        for message in self._close_command_runs():
            _log.warning("%s", message)
            messages.append(message)
        return messages

    @property
    def num_suspects(self) -> int:
        """Number of runs that appear dead, but not yet for long enough."""
        return len(self._suspects)

    def _reconcile(self, experiment: str, run: FlowRun, status: ExperimentStatus) -> Iterator[str]:
        assert run.state is not None, "checked by check_once"
        kind = run.state.type
        if status.state == "running" or kind not in _STATES_TO_CHECK:
            return
        if kind not in (StateType.CRASHED, StateType.FAILED) and not self._suspects.is_due(run):
            return
        if kind is StateType.CANCELLING:
            self._set(run, Cancelled(message="ended"))
            yield "cancelled; its process is gone"
            return
        state = state_of(status, scheduled_run(run), is_dead=True)
        if state.state == "done":
            self._set(run, Completed(message="its result exists"))
            yield "completed; its result exists"
        elif state.will_continue:
            yield self._resubmit(experiment, run, state.reason.partition("\n")[0].rstrip(".") or "it crashed")
        elif kind is StateType.RUNNING:  # other failures are left for the user to inspect
            self._set(run, Failed(message=state.reason))
            yield f"failed, and could not report it: {state.reason}"

    def _close_command_runs(self) -> Iterator[str]:
        """Report each `hacpo train` that was killed as ended; it has no worker and is not restarted."""
        conditions = {"state": {"type": {"any_": ["RUNNING"]}}, "deployment_id": {"is_null_": True}}
        pages = flow_run_pages(self.schedule.client, conditions, flow="experiment")
        for run in [run for page in pages for run in page]:
            experiment = run.parameters.get("experiment", "")
            if Path(run.parameters.get("runs_dir", "")) != self.runs_dir.absolute():
                continue
            status = experiment_status(self.schedule.root(experiment))
            if status.state != "running" and self._suspects.is_due(run):
                if status.state == "done":
                    self._set(run, Completed(message="its result exists"))
                else:
                    self._set(run, Crashed(message="it was killed"))
                yield f"{experiment}: the command that trained it is gone"

    def _resubmit(self, experiment: str, run: FlowRun, reason: str) -> str:
        # It may have been cancelled since it was read, or before Prefect reported a crash.
        if self._was_cancelled(run):
            self._set(run, Cancelled(message="ended"))
            return "cancelled; its process is gone"
        if not (self.schedule.root(experiment) / CONFIG_FILE).is_file():
            self._set(run, Cancelled(message="its experiment was deleted"))
            return f"{reason}; cancelled, because its experiment was deleted"
        step = StepStore(self.schedule.root(experiment)).last_step()
        restarts = _restarts(run, step)
        self._set(run, Crashed(message=reason))
        if restarts >= MAX_RESTARTS:
            error = EngineError(f"{reason}, {restarts + 1} times; retry it with `hacpo grid --run failed`")
            record_failure(self.schedule.root(experiment), error)
            return f"{reason}; given up after {restarts} restarts"
        # Not by rescheduling the same run: a worker that still waits for the dead process would take it twice and fail.
        self.schedule.submit(
            experiment, run.work_queue_name or "normal", run, tags=[f"{_RESTARTS}{restarts + 1}@{step}"]
        )
        return f"{reason}; resubmitted ({restarts + 1} of {MAX_RESTARTS})"

    def _was_cancelled(self, run: FlowRun) -> bool:
        """Whether the run was cancelled and not rescheduled (on Prefect's web page) since then."""
        with prefect_errors():
            states = self.schedule.client.read_flow_run_states(run.id)  # oldest first
        for state in reversed(states):
            if state.type in (StateType.SCHEDULED, StateType.CANCELLING, StateType.CANCELLED):
                return state.type is not StateType.SCHEDULED
        return False

    def _set(self, run: FlowRun, state: State[Any]) -> None:
        with prefect_errors():
            self.schedule.client.set_flow_run_state(run.id, state, force=True)

    def send_tracking(self) -> None:
        """Have a process send to MLflow what ended experiments did not, one at a time; the store may be silent."""
        is_busy = self.sender is not None and self.sender.poll() is None
        if is_busy or time.monotonic() < self._send_at:
            return
        self._send_at = time.monotonic() + SEND_EVERY_S  # to look reads a file of every experiment
        unsent = unsent_experiments(self.runs_dir)
        if unsent:
            command = module_command("flows.cli", "sync", *unsent, "--runs-dir", str(self.runs_dir))
            self.sender = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)


def _restarts(run: FlowRun, step: int) -> int:
    """Number of consecutive restarts since the experiment last progressed to `step`."""
    for tag in run.tags:
        if tag.startswith(_RESTARTS):
            number, _, restarted_at = tag.removeprefix(_RESTARTS).partition("@")
            return int(number) if int(restarted_at) >= step else 0
    return 0


def reconcile_once(schedule: Schedule, runs_dir: Path, timeouts: Timeouts) -> list[str]:
    """Check repeatedly until no run appears dead, at most for the longest of the timeouts and some seconds more."""
    reconciler = Reconciler(schedule, runs_dir, timeouts)
    deadline = time.monotonic() + max(timeouts.pending_s, timeouts.running_s, timeouts.gone_s) + SLACK_S
    messages = reconciler.check_once()
    while reconciler.num_suspects and time.monotonic() < deadline:
        time.sleep(1.0)
        messages += reconciler.check_once()
    return messages
