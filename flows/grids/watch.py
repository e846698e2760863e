"""Show the progress of queued experiments until all have ended."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from flows.planning.plans import Plan
from flows.records.states import experiment_status
from flows.runs.display import Bars
from flows.service.experiment_state import ScheduledRun, state_of
from flows.service.schedule import RefusedError, Schedule
from hacpo_core.errors import ServerError

LOOK_EVERY_S, ASK_EVERY_S = 0.5, 5.0


def watch(
    plans: Sequence[Plan], schedule: Schedule, reconnect: Callable[[], Schedule], check: Callable[[], None]
) -> dict[str, str]:
    """Queue experiments and show their progress until each is complete, has failed or was cancelled.

    An experiment that another process trains is queued if that process ends without a result. The end of a flow run
    counts only if the run was live while this function watched it: an earlier end is not about this call. A recorded
    failure always counts.

    Args:
        plans: experiments that are not complete, the first to be queued first.
        schedule: of their runs folder.
        reconnect: restarts a server that does not answer, possibly at another address.
        check: called regularly; raises if waiting is pointless.

    Returns:
        reason by id of the experiments that failed or were cancelled; the others are complete.
    """
    with Bars() as bars:
        experiments = _OpenExperiments(plans, schedule, reconnect, bars)
        while experiments.roots:
            check()
            experiments.check_once()
            time.sleep(LOOK_EVERY_S)
    return experiments.reasons


class _OpenExperiments:
    """The experiments of a call of `watch`."""

    def __init__(
        self, plans: Sequence[Plan], schedule: Schedule, reconnect: Callable[[], Schedule], bars: Bars
    ) -> None:
        self.roots = {plan.id: plan.root for plan in plans}
        self.reasons: dict[str, str] = {}
        self._schedule, self._reconnect, self._bars = schedule, reconnect, bars
        self._runs: Mapping[str, ScheduledRun] = {}
        self._asked_at = -math.inf
        self._run_ids: dict[str, str] = {}
        """by experiment: the newest flow run that was live while it was watched"""

    def check_once(self) -> None:
        """Check every experiment, and ask the server if its last answer is old."""
        are_runs_current = time.monotonic() - self._asked_at > ASK_EVERY_S and self._ask()
        for name, root in list(self.roots.items()):
            status, run = experiment_status(root), self._runs.get(name)
            if status.state == "running" and (progress := status.progress) is not None:
                self._bars.show(name, progress.step, progress.num_steps, progress.brief_reward)
            state, reason = state_of(status, run), None
            if not root.is_dir():
                reason = "its folder was deleted"
            elif not state.will_continue and state.state != "done":
                was_watched = run is not None and run.id == self._run_ids.get(name)
                if was_watched or status.failure is not None:
                    reason = state.reason
                elif are_runs_current:
                    with suppress(ServerError, RefusedError):  # it was queued or has started meanwhile
                        self._run_ids[name] = self._schedule.start(name).id
            if state.state == "done" or reason is not None:
                del self.roots[name]
                outcome = "" if status.progress is None else status.progress.outcome
                self._bars.finish(name, f"done, {outcome}" if reason is None else f"FAILED, {reason}")
                if reason is not None:
                    self.reasons[name] = reason

    def _ask(self) -> bool:
        """Read the flow runs; False if the server did not answer and was restarted."""
        try:
            self._runs, self._asked_at = self._schedule.runs(), time.monotonic()
        except ServerError:
            self._schedule = self._reconnect()
            return False
        self._run_ids |= {run.experiment: run.id for run in self._runs.values() if run.is_live}
        return True
