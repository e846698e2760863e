"""The state of an experiment, from its folder and its newest flow run: one answer for all that ask."""

from dataclasses import dataclass

from flows.records.states import ExperimentStatus

STATES = ("done", "running", "queued", "failed", "missing", "unavailable")
CANCELLING = "being cancelled"
WAITING = ("Scheduled", "Pending", "Paused")
"""states of flow runs that no worker has started"""
LIVE = (*WAITING, "Running", "Cancelling")
"""states of a queued or executing flow run; the others are Completed, Failed, Crashed, Cancelled"""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """The newest flow run of an experiment."""

    id: str
    """of the flow run, for links to Prefect's web page"""
    experiment: str
    state: str
    """Prefect's state type, capitalised: one of LIVE, or Completed, Failed, Crashed, Cancelled"""
    message: str

    @property
    def is_live(self) -> bool:
        """Whether it is queued or executing."""
        return self.state in LIVE


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """A state (one of STATES) and its reason."""

    state: str
    reason: str
    will_continue: bool = False
    """whether a process, a worker or the reconciler still acts on it, without another request"""


def state_of(
    status: ExperimentStatus, run: ScheduledRun | None, unavailable: str = "", *, is_dead: bool = False
) -> ExperimentState:
    """Combine files and schedule into one state; a lock or a result in the folder overrides the schedule.

        folder          flow run                              state
        result          any                                   done
        lock            any                                   running
        neither         waiting                               queued
        neither         waiting, and its worker is dead       failed, and will continue: the reconciler resubmits it
        neither         Running, Cancelling                   running
        failure         any other, or dead                    failed
        no failure      Crashed, or Running and dead          failed, and will continue
        no failure      Failed                                failed
        no failure      Cancelled, or Cancelling and dead     missing, or unavailable
        no failure      Completed, none                       missing, or unavailable

    Args:
        status: state from the folder.
        run: newest flow run, None if the schedule has none or was not asked.
        unavailable: why the experiment could not be planned, "" if it could.
        is_dead: whether the process of a live flow run is known to be gone.
    """
    if status.state in ("done", "running"):
        is_running = status.state == "running"
        is_ending = is_running and run is not None and run.state == "Cancelling"
        return ExperimentState(status.state, CANCELLING if is_ending else status.reason, will_continue=is_running)
    if run is not None and run.is_live and not is_dead:
        if run.state in WAITING:
            return ExperimentState("queued", "waiting for a worker", will_continue=True)
        reason = CANCELLING if run.state == "Cancelling" else "starting, or its process has just ended"
        return ExperimentState("running", reason, will_continue=True)
    if run is not None and run.state in WAITING:  # it has not begun: a failure in the folder is an earlier one
        return ExperimentState("failed", "was pending for too long, its worker is gone", will_continue=True)
    if status.state == "failed":
        return ExperimentState("failed", status.reason)
    if run is not None and run.state == "Failed":
        return ExperimentState("failed", run.message or "flow run failed")
    is_cancelled = run is not None and run.state in ("Cancelled", "Cancelling")
    if run is not None and run.state != "Completed" and not is_cancelled:
        message = run.message.strip() if run.state == "Crashed" else ""
        return ExperimentState("failed", message or "its process died", will_continue=True)
    if unavailable and status.progress is None:
        return ExperimentState("unavailable", unavailable)
    if is_cancelled:
        so_far = f", {status.reason}" if status.progress is not None else ""
        return ExperimentState("missing", f"cancelled{so_far}")
    return ExperimentState("missing", status.reason)
