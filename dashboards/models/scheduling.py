"""The schedule, queried in the background, so that a slow or dead Prefect server never delays a page."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from flows.service.experiment_state import WAITING, ScheduledRun
from flows.service.prefect_server import find_server
from flows.service.schedule import RefusedError, Schedule
from hacpo_core.errors import HacpoError

_log = logging.getLogger(__name__)
PERIOD_S = 2.0
_IDLE_AFTER_S = 30.0
"""the schedule is not queried if there was no request for this long"""
_OLD_S = 10.0
"""age in seconds above which an answer is marked as old"""
OLD = "The schedule's state below is from an earlier visit; it is being read again."
NO_SERVER = "No Prefect server runs for this folder, so nothing can be started from here; `hacpo worker` starts one."
UNREADABLE = (
    "The schedule could not be read because of an error in hacpo ({kind}; the terminal of `hacpo dashboard` shows it); "
    "states below come from the files alone."
)
NO_WORKER = "No worker is online; queued experiments start once `hacpo worker` runs on a machine."


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """Last known state of the schedule.

    `num_slots` is the number of experiments that the worker trains at a time, 0 without a worker; `notice` is a
    message for the page, "" if there is no problem.
    """

    runs: Mapping[str, ScheduledRun] = field(default_factory=dict)
    num_slots: int = 0
    notice: str = ""


class Scheduling:
    """A cache of the schedule; one thread refreshes it while there are requests."""

    def __init__(
        self, connect: Callable[[], Schedule | None], *, period_s: float = PERIOD_S, old_s: float = _OLD_S
    ) -> None:
        self._connect, self._period_s, self._old_s = connect, period_s, old_s
        self._view = ScheduleView()
        self._looked_at = self._asked_at = 0.0
        self._refresh_event, self._answer_event = threading.Event(), threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def view(self, *, wait_s: float = 0.0) -> ScheduleView:
        """The last known state; if it is missing or old, wait up to `wait_s` for another, and mark it if none comes."""
        self._looked_at = time.monotonic()
        if self._asked_at and self._looked_at - self._asked_at > self._old_s:
            self._answer_event.clear()
            self._refresh_event.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="schedule", daemon=True)
            self._thread.start()
        is_new = self._answer_event.wait(wait_s)
        return self._view if is_new or not self._asked_at else replace(self._view, notice=OLD)

    def refresh(self, *, wait_s: float = 0.0) -> None:
        """Query the schedule at once, after a change."""
        self._answer_event.clear()
        self._refresh_event.set()
        self.view(wait_s=wait_s)

    def close(self) -> None:
        """Stop the thread."""
        self._is_closed = True
        self._refresh_event.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._is_closed:
            if time.monotonic() - self._looked_at < _IDLE_AFTER_S:
                self._refresh_event.clear()
                self._view = self._ask()
                self._asked_at = time.monotonic()
                self._answer_event.set()
            self._refresh_event.wait(self._period_s)

    def _ask(self) -> ScheduleView:
        try:
            schedule = self._connect()
            if schedule is None:
                return ScheduleView(notice=NO_SERVER)
            runs = schedule.runs()
            num_slots = schedule.num_slots()
            is_stuck = not num_slots and any(run.state in WAITING for run in runs.values())
            return ScheduleView(runs, num_slots, NO_WORKER if is_stuck else "")
        except HacpoError as error:
            _log.info("the schedule could not be queried: %s: %s", type(error).__name__, error)
            return ScheduleView(
                self._view.runs,
                notice=f"The Prefect server does not answer ({type(error).__name__}); "
                "states below come from the files, queues from its last answer.",
            )
        except Exception as error:  # noqa: BLE001  the thread must survive it, and pages need only the files
            _log.exception("the schedule could not be read")
            return ScheduleView(notice=UNREADABLE.format(kind=type(error).__name__))

    def schedule(self) -> Schedule:
        """The schedule itself, to make changes.

        Raises:
            RefusedError: there is no server, or it cannot be used.
        """
        try:
            schedule = self._connect()
        except HacpoError as error:
            raise RefusedError(f"the Prefect server does not answer ({type(error).__name__})") from error
        if schedule is None:
            raise RefusedError(
                "no Prefect server runs for this folder; start one with `hacpo worker` or `hacpo server start`"
            )
        return schedule


def connector(runs_dir: Path) -> Callable[[], Schedule | None]:
    """A function that returns the schedule of a runs folder, None without a server; follows a change of server."""
    schedule_of = lru_cache(1)(lambda server: Schedule(server, runs_dir))

    def connect() -> Schedule | None:
        server = find_server(runs_dir)
        return None if server is None else schedule_of(server)

    return connect
