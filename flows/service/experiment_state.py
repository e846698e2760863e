"""The state of an experiment, which combines its folder and the schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.records.states import ExperimentStatus

if TYPE_CHECKING:  # importing Prefect takes over a second
    from flows.service.schedule import ScheduledRun

STATES = ("done", "running", "queued", "failed", "missing", "unavailable")
CANCELLING = "being cancelled"
WAITING = ("Scheduled", "Pending", "Paused")
"""states of flow runs that no worker has started"""


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """A state (one of STATES) and its reason."""

    state: str
    reason: str


def state_of(status: ExperimentStatus, run: ScheduledRun | None, unavailable: str = "") -> ExperimentState:
    """Combine files and schedule into one state; a lock or a result in the folder overrides the schedule.

    Args:
        status: state from the folder.
        run: newest flow run, None if the schedule has none or was not asked.
        unavailable: why the experiment could not be planned, "" if it could.
    """
    if status.state in ("done", "running"):
        is_ending = status.state == "running" and run is not None and run.state == "Cancelling"
        return ExperimentState(status.state, CANCELLING if is_ending else status.reason)
    if run is not None:
        if run.state in WAITING:
            return ExperimentState("queued", f"waiting for a worker, priority {run.priority}")
        if run.state == "Cancelling":
            return ExperimentState("running", CANCELLING)
        if run.state == "Running":
            return ExperimentState("running", "starting, or its process has just ended")
    if status.state == "failed":
        return ExperimentState("failed", status.reason)
    if run is not None and run.state in ("Failed", "Crashed"):
        return ExperimentState("failed", run.message or f"flow run {run.state.lower()}")
    if unavailable and status.progress is None:
        return ExperimentState("unavailable", unavailable)
    if run is not None and run.state == "Cancelled":
        so_far = f", {status.reason}" if status.progress is not None else ""
        return ExperimentState("missing", f"cancelled{so_far}")
    return ExperimentState("missing", status.reason)
