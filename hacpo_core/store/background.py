"""Work in a thread behind training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import takewhile

_log = logging.getLogger(__name__)


class Background:
    """A thread that does one piece of work after the other; what fails there is raised here, by the next call."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._jobs: list[Future[None]] = []
        self._mutex = threading.Lock()

    def do(self, work: Callable[[], None], *, checks: bool = True) -> None:
        """Add work; raises what earlier work raised, unless told not to look."""
        with self._mutex:
            ended = self._take_ended() if checks else []
            self._jobs.append(self._thread.submit(work))
        _raise_first(ended)

    def check(self) -> None:
        """Raise what work raised that is done."""
        with self._mutex:
            ended = self._take_ended()
        _raise_first(ended)

    def _take_ended(self) -> list[Future[None]]:
        ended = list(takewhile(Future.done, self._jobs))  # in their order: one that ends meanwhile stays
        self._jobs = self._jobs[len(ended) :]
        return ended

    def wait(self, *, raises: bool = True) -> None:
        """Wait until all work is done; raises what it raised, or logs it where another error is under way."""
        with self._mutex:
            jobs, self._jobs = self._jobs, []
        wait(jobs)
        _raise_first(jobs, raises=raises)


def _raise_first(ended: Sequence[Future[None]], *, raises: bool = True) -> None:
    errors = [error for job in ended if (error := job.exception()) is not None]
    for consequence in errors[1:] if raises else errors:
        _log.warning("also, behind this: %s", consequence)
    if raises and errors:
        raise errors[0]
