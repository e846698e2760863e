"""Work that nobody waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

_log = logging.getLogger(__name__)


class Background:
    """A thread that does one piece of work after the other; what fails there is raised here, by the next call."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._jobs: list[Future[None]] = []
        self._mutex = threading.Lock()

    def do(self, work: Callable[[], None]) -> None:
        """Add work; raises what earlier work raised."""
        with self._mutex:
            ended = [job for job in self._jobs if job.done()]
            self._jobs = [*self._jobs[len(ended) :], self._thread.submit(work)]
        _raise_first(ended)

    def wait(self) -> None:
        """Wait until all work is done; raises what it raised."""
        with self._mutex:
            jobs, self._jobs = self._jobs, []
        wait(jobs)
        _raise_first(jobs)


def _raise_first(ended: Sequence[Future[None]]) -> None:
    errors = [error for job in ended if (error := job.exception()) is not None]
    for consequence in errors[1:]:
        _log.warning("after %s also: %s", errors[0], consequence)
    if errors:
        raise errors[0]
