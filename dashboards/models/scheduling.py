"""What the schedule says, asked in the background: a Prefect server that is slow or gone never holds up a page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flows.service.schedule import RefusedError, Schedule, ScheduledRun, WorkerRecord
from flows.service.server import PrefectServer, find_server

_log = logging.getLogger(__name__)
PERIOD_S = 2.0
_IDLE_AFTER_S = 30.0
"""without a request for this long, the schedule is left alone"""
NO_SERVER = "No Prefect server runs for this folder, so nothing can be started from here; `hacpo worker` starts one."
NO_WORKER = "No worker is alive: what waits in a queue stays there until `hacpo worker` runs on a machine."


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """The schedule as it was heard of last. `notice` is for people, "" when all is well."""

    runs: Mapping[str, ScheduledRun] = field(default_factory=dict)
    workers: Sequence[WorkerRecord] = ()
    notice: str = ""

    @property
    def num_slots(self) -> int:
        """Experiments that the living workers can train at a time."""
        return sum(worker.num_slots for worker in self.workers)


class Scheduling:
    """A schedule behind a cache; one thread asks, and only while somebody looks."""

    def __init__(self, connect: Callable[[], Schedule | None], *, period_s: float = PERIOD_S) -> None:
        self._connect, self._period_s = connect, period_s
        self._view = ScheduleView()
        self._looked_at = 0.0
        self._wanted, self._answered = threading.Event(), threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def view(self, *, wait_s: float = 0.0) -> ScheduleView:
        """The last answer; the first time, waits a little for one."""
        self._looked_at = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="schedule", daemon=True)
            self._thread.start()
        self._answered.wait(wait_s)
        return self._view

    def refresh(self, *, wait_s: float = 0.0) -> None:
        """Ask again at once, because something was just changed."""
        self._answered.clear()
        self._wanted.set()
        self.view(wait_s=wait_s)

    def close(self) -> None:
        """Stop asking."""
        self._is_closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._is_closed:
            if time.monotonic() - self._looked_at < _IDLE_AFTER_S:
                self._wanted.clear()
                self._view = self._ask()
                self._answered.set()
            self._wanted.wait(self._period_s)

    def _ask(self) -> ScheduleView:
        try:
            schedule = self._connect()
            if schedule is None:
                return ScheduleView(notice=NO_SERVER)
            runs = schedule.runs()
            workers = schedule.workers()
            return ScheduleView(runs, workers, "" if workers else NO_WORKER)
        except Exception as error:  # noqa: BLE001  whatever a server's client raises, the page goes on from the files
            _log.info("the schedule could not be asked: %s: %s", type(error).__name__, error)
            return ScheduleView(
                self._view.runs,
                notice=f"The Prefect server does not answer ({type(error).__name__}); "
                "states below come from the files, and queues as they were heard of last.",
            )

    def schedule(self) -> Schedule:
        """The schedule itself, to change something.

        Raises:
            RefusedError: there is no server that could.
        """
        try:
            found = self._connect()
        except Exception as error:  # as above
            raise RefusedError(f"the Prefect server does not answer ({type(error).__name__})") from error
        if found is None:
            raise RefusedError("no Prefect server runs for this folder; `hacpo worker` or `hacpo server start` first")
        return found


def connector(runs_dir: Path) -> Callable[[], Schedule | None]:
    """Finds the schedule of a runs folder, anew whenever its server is another one."""
    known: dict[PrefectServer, Schedule] = {}

    def connect() -> Schedule | None:
        server = find_server(runs_dir)
        if server is None:
            known.clear()
            return None
        if server not in known:
            known.clear()
            known[server] = Schedule(server, runs_dir)
        return known[server]

    return connect
