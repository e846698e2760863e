"""Finds flow runs whose process died unseen and submits their experiments again, a few times.

Prefect notices a dead process only while the worker that started it lives. The experiment's own lock says who lives:

    Pending for long                                -> the worker died before it started anything   -> again
    Running, nobody holds the lock, no result       -> the process died                            -> again
    Running, Crashed or Failed, a result is there   -> it died after its work was done              -> Completed
    Running, nobody holds it, a failure is recorded -> it could not report                          -> Failed
    Crashed                                         -> the worker saw it die, or Prefect failed it   -> again
    Cancelling, nobody holds it                     -> nobody was there to report it                -> Cancelled
    Crashed, cancelled before that                  -> its end was reported as a crash              -> Cancelled
    Running, a command's own, nobody holds the lock -> `hacpo train` was killed                     -> Crashed

"Again" is a new flow run, and bounded by MOST_RESTARTS without a step between them; after that the experiment counts
as failed. MLflow runs of experiments that nobody trains any more are closed. Runs without an experiment's lock, and
processes that outlive their cancelled run, are `flows.service.host`'s.
"""

from __future__ import annotations

import argparse
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.planning.compose import load_config
from flows.records.failures import record_failure
from flows.records.folders import experiments_dir
from flows.records.states import CONFIG_FILE, RESULT_FILE, Standing, standing_of
from flows.service.host import HostWatch, Patience, processes_of_runs
from flows.service.processes import home_of, only_one
from flows.service.schedule import Schedule, answers, host_of
from flows.service.server import RECONCILER_LOCK, await_server
from hacpo_core.config.addresses import STATE_FILE, tracking_uri
from hacpo_core.errors import EngineError, HacpoError
from hacpo_core.store.lock import is_locked
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)
MOST_RESTARTS = 3
"""times in a row that an experiment goes back into the queue without a step more than the last time"""
RECONCILE_EVERY_S = 30.0
_RESTARTS = "restarts:"
_JUDGED = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.CRASHED, StateType.FAILED)


@dataclass
class Reconciler:
    """Looks at one runs folder's flow runs again and again; remembers since when one looks dead."""

    schedule: Schedule
    runs_dir: Path
    patience: Patience = field(default_factory=Patience)
    _since: dict[Any, float] = field(default_factory=dict)
    _closed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._host = HostWatch(self.patience)

    def look(self) -> list[str]:
        """One look at every run; what was done about it, in words.

        Raises:
            ServerError: the server does not answer.
        """
        done = self._host.look(self.schedule.client)
        suspects: set[Any] = set()
        for experiment, run in self.schedule.flow_runs().items():
            if not experiment or run.state is None:
                continue
            standing = standing_of(self.schedule.root(experiment))
            for message in self._judge(experiment, run, standing, suspects):
                _log.warning("%s: %s", experiment, message)
                done.append(f"{experiment}: {message}")
        for message in self._end_commands(suspects):
            _log.warning("%s", message)
            done.append(message)
        self._since = {key: since for key, since in self._since.items() if key in suspects}
        return done + self._close_tracking()

    @property
    def num_suspects(self) -> int:
        """Runs that look dead, but not for long enough yet."""
        return len(self._since) + self._host.num_suspects

    def _judge(self, experiment: str, run: FlowRun, standing: Standing, suspects: set[Any]) -> Iterator[str]:
        assert run.state is not None, "checked by look"
        kind, is_held = run.state.type, standing.state == "running"
        if is_held or kind not in _JUDGED:
            return
        if kind is StateType.CANCELLING:
            if self._is_due(run, self.patience.running_s, suspects):
                self._set(run, Cancelled(message="ended"))
                yield "cancelled; its process is gone"
            return
        if kind is StateType.PENDING:
            if self._is_due(run, self.patience.pending_s, suspects):
                yield self._again(experiment, run, "was pending for too long, its worker is gone")
            return
        if kind is StateType.RUNNING and not self._is_due(run, self.patience.running_s, suspects):
            return
        if standing.state == "done":
            self._set(run, Completed(message="its result is there"))
            yield "completed; its result is there"
        elif standing.failure is None and kind is not StateType.FAILED:  # at which a person looks
            said = (run.state.message or "").strip().partition("\n")[0].rstrip(".") if kind is StateType.CRASHED else ""
            yield self._again(experiment, run, said or "its process died")
        elif kind is StateType.RUNNING and standing.failure is not None:
            self._set(run, Failed(message=standing.failure.reason))
            yield f"failed, and could not report it: {standing.failure.reason}"

    def _end_commands(self, suspects: set[Any]) -> Iterator[str]:
        """Report the end of each `hacpo train` that was killed: it had no worker, and nobody starts it again."""
        with answers():
            running = self.schedule.client.read_flow_runs(
                flow_filter=FlowFilter.model_validate({"name": {"any_": ["experiment"]}}),
                flow_run_filter=FlowRunFilter.model_validate(
                    {"state": {"type": {"any_": ["RUNNING"]}}, "deployment_id": {"is_null_": True}}
                ),
            )
        for run in running:
            experiment = run.parameters.get("experiment", "")
            if Path(run.parameters.get("runs_dir", "")) != self.runs_dir.absolute():
                continue
            standing = standing_of(self.schedule.root(experiment))
            if standing.state != "running" and self._is_due(run, self.patience.running_s, suspects):
                if standing.state == "done":
                    self._set(run, Completed(message="its result is there"))
                else:
                    self._set(run, Crashed(message="it was killed"))
                yield f"{experiment}: the command that trained it is gone"

    def _is_due(self, run: FlowRun, patience_s: float, suspects: set[Any]) -> bool:
        """Whether the run was seen in this state for long enough, and no process here belongs to it."""
        assert run.state is not None, "checked by look"
        if host_of(run) not in (None, socket.gethostname()):
            patience_s = max(patience_s, self.patience.pending_s)  # its process may be there and have no lock yet
        key = (run.id, run.state.id)
        suspects.add(key)
        now = time.monotonic()
        return now - self._since.setdefault(key, now) >= patience_s and str(run.id) not in processes_of_runs()

    def _again(self, experiment: str, run: FlowRun, reason: str) -> str:
        if self._was_cancelled(run):  # since it was read; or before a crash, which Prefect reports whatever came before
            self._set(run, Cancelled(message="ended"))
            return "cancelled; its process is gone"
        step = StepStore(self.schedule.root(experiment)).last_step()
        restarts = _restarts(run, step)
        self._set(run, Crashed(message=reason))
        if restarts >= MOST_RESTARTS:
            error = EngineError(f"{reason}, {restarts + 1} times; `hacpo grid --run failed` tries it again")
            record_failure(self.schedule.root(experiment), error)
            return f"{reason}; given up after {restarts} restarts"
        # Not the same run again: a worker that still waits for the dead process would take it twice, and fall over it.
        self.schedule.submit(
            experiment, run.work_queue_name or "normal", run, tags=[f"{_RESTARTS}{restarts + 1}@{step}"]
        )
        return f"{reason}; in the queue again ({restarts + 1} of {MOST_RESTARTS})"

    def _was_cancelled(self, run: FlowRun) -> bool:
        """Whether somebody cancelled it and nobody has scheduled it again, on Prefect's page, since then."""
        with answers():
            states = self.schedule.client.read_flow_run_states(run.id)  # the oldest first
        for state in reversed(states):
            if state.type in (StateType.SCHEDULED, StateType.CANCELLING, StateType.CANCELLED):
                return state.type is not StateType.SCHEDULED
        return False

    def _set(self, run: FlowRun, state: State[Any]) -> None:
        with answers():
            self.schedule.client.set_flow_run_state(run.id, state, force=True)

    def _close_tracking(self) -> list[str]:
        """Close MLflow runs of experiments that nobody writes to any more; once per time that they were opened."""
        abandoned: dict[Path, int] = {}
        for path in experiments_dir(self.runs_dir).glob(f"*/{STATE_FILE}"):  # written whenever they are opened
            opened_ns = path.stat().st_mtime_ns
            if self._closed.get(path.parent.name) != opened_ns and _is_abandoned(path.parent, opened_ns):
                abandoned[path.parent] = opened_ns
        if not abandoned:
            return []
        from hacpo_core.tracking import close_abandoned  # MLflow takes a second; most looks need none

        closed = []
        failing: set[str] = set()
        for root, opened_ns in sorted(abandoned.items()):
            if not _is_abandoned(root, opened_ns):  # submitted again, it began meanwhile
                continue
            status, uri = "FINISHED" if (root / RESULT_FILE).is_file() else "KILLED", ""
            try:
                uri = tracking_uri(load_config(root / CONFIG_FILE).tracking.uri, self.runs_dir)
                if uri in failing:  # a silent server takes minutes each time
                    continue
                if close_abandoned(root, uri, status):
                    closed.append(f"{root.name}: its MLflow runs are closed")
            except HacpoError as error:  # an experiment of another version of this code; the others go on
                _log.warning("%s: its MLflow runs stay as they are: %s", root.name, error)
            except Exception as error:  # noqa: BLE001  of a store that is locked or silent; the next look tries again
                _log.warning("%s: its MLflow runs are open still: %s: %s", root.name, type(error).__name__, error)
                failing.add(uri)
                continue
            self._closed[root.name] = opened_ns
        return closed


def _is_abandoned(root: Path, opened_ns: int) -> bool:
    """Whether nobody writes to an experiment whose MLflow runs were opened then and may not have been closed."""
    state = standing_of(root).state
    if state == "done":  # closed before the result was written; an evaluation may have opened them again
        return (root / RESULT_FILE).stat().st_mtime_ns < opened_ns and not is_locked(root)
    return state in ("missing", "failed")


def _restarts(run: FlowRun, step: int) -> int:
    """Restarts so far, of which the last one was at this step."""
    for tag in run.tags:
        if tag.startswith(_RESTARTS):
            number, _, at = tag.removeprefix(_RESTARTS).partition("@")
            return int(number) if int(at) >= step else 0
    return 0


def reconcile_once(schedule: Schedule, runs_dir: Path, patience: Patience) -> list[str]:
    """Look until nothing is suspicious any more: at most as long as the patience lasts."""
    reconciler = Reconciler(schedule, runs_dir, patience)
    done = reconciler.look()
    while reconciler.num_suspects:
        time.sleep(1.0)
        done += reconciler.look()
    return done


def main() -> None:
    """Look for ever; brings the server back when it died. Started with the server, one per runs folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs-dir", type=Path, required=True)
    runs_dir = parser.parse_args().runs_dir
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with only_one(home_of(runs_dir) / RECONCILER_LOCK) as is_alone:
        if not is_alone:
            return
        server = reconciler = None
        while True:
            time.sleep(RECONCILE_EVERY_S if reconciler is not None else 1.0)
            try:
                current = await_server(runs_dir)
                if reconciler is None:
                    reconciler = Reconciler(Schedule(current, runs_dir), runs_dir)
                elif current != server:  # one that came back may have had to take another port
                    reconciler.schedule = Schedule(current, runs_dir)
                server = current
                reconciler.look()
            except Exception as error:  # noqa: BLE001  it must outlive whatever it looks after
                _log.warning("this look failed, the next may not: %s: %s", type(error).__name__, error)


if __name__ == "__main__":
    main()
