"""Work in a background thread during training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import takewhile

_log = logging.getLogger(__name__)


class Background:
    """A thread that runs one job after another. An error in a job is raised by the next call."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._jobs: list[Future[None]] = []
        self._mutex = threading.Lock()

    def do(self, work: Callable[[], None], *, checks: bool = True) -> None:
        """Add a job; with `checks`, raise the errors of earlier jobs."""
        with self._mutex:
            finished_jobs = self._pop_finished() if checks else []
            self._jobs.append(self._thread.submit(work))
        _raise_first(finished_jobs)

    def check(self) -> None:
        """Raise the errors of finished jobs."""
        with self._mutex:
            finished_jobs = self._pop_finished()
        _raise_first(finished_jobs)

    def _pop_finished(self) -> list[Future[None]]:
        finished_jobs = list(takewhile(Future.done, self._jobs))  # in order: a later job that ends meanwhile stays
        self._jobs = self._jobs[len(finished_jobs) :]
        return finished_jobs

    def wait(self, *, raises: bool = True) -> None:
        """Wait for all jobs, then raise their errors; without `raises`, log them."""
        with self._mutex:
            jobs, self._jobs = self._jobs, []
        wait(jobs)
        _raise_first(jobs, raises=raises)


def _raise_first(jobs: Sequence[Future[None]], *, raises: bool = True) -> None:
    errors = [error for job in jobs if (error := job.exception()) is not None]
    for consequence in errors[1:] if raises else errors:
        _log.warning("another error in the background thread: %s", consequence)
    if raises and errors:
        raise errors[0]
