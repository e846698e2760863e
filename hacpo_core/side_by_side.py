"""Phases in threads, each as soon as what it needs is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context

from hacpo_core.phases.runner import Handle, Phase, Runner


class BrokenOffError(Exception):
    """A phase that was not run, because an earlier one failed."""


class SideBySideRunner:
    """Hands each phase to another runner, in a thread of its own, once everything in `after` is done.

    For agents that work in processes of their own: the threads only wait for them. When a phase fails, those that come
    after it are broken off, and so is all that has not begun.
    """

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._threads: list[threading.Thread] = []
        self._mutex = threading.Lock()
        self._has_ended = False
        self.failure: BaseException | None = None
        """what the first phase that failed raised"""

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run `work` in a thread once everything in `after` is done."""
        done: Future[None] = Future()
        thread = threading.Thread(
            target=copy_context().run, args=(self._run, phase, work, after, done), name=phase.name, daemon=True
        )
        self._threads = [old for old in self._threads if old.is_alive()]
        self._threads.append(thread)
        thread.start()
        return done

    def _run(self, phase: Phase, work: Callable[[], None], after: Sequence[Handle], done: Future[None]) -> None:
        try:
            for handle in after:
                handle.result()
            if self._has_ended or self.failure is not None:
                raise BrokenOffError(f"step {phase.step}, {phase.name}: another phase failed before it began")
            self._inner.start(phase, work).result()
        except BaseException as error:  # noqa: BLE001  handed to whoever waits for the phase
            with self._mutex:
                self.failure = self.failure or error
            done.set_exception(error)
        else:
            done.set_result(None)

    def wait(self) -> None:
        """Begin nothing more, and wait until what has begun is done."""
        self._has_ended = True
        for thread in self._threads:
            thread.join()
