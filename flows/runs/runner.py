"""Runs phases as Prefect tasks, with readable names, a `gpu` tag and conditional retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from flows.planning.plans import Plan
from flows.records.runlog import log_entry
from hacpo_core.errors import (
    ConfigError,
    DataError,
    LockedError,
    MethodError,
    ModelError,
    ReplayError,
    ServerError,
    first_line,
)
from hacpo_core.phases.runner import Handle, Phase, restarting

PHASE_RETRIES, RETRY_DELAY_S = 2, 1.0
"""retries of a failed phase, none after an error that another attempt would repeat; and the wait before each"""


class PhaseSkippedError(Exception):
    """The phase was not run because an earlier one failed."""


_FINAL_ERRORS = (ConfigError, DataError, MethodError, ModelError, LockedError, ReplayError)
NEVER_RETRIED = (*_FINAL_ERRORS, PhaseSkippedError, KeyboardInterrupt)


def _may_retry(_task: Any, run: Any, state: Any) -> bool:
    error = state.result(raise_on_failure=False)
    if isinstance(error, NEVER_RETRIED):
        return False
    log_entry("retry", f"{run.name} is tried again after {type(error).__name__}: {first_line(error)}")
    return True


class PrefectRunner:
    """Runs each phase as a task of the current flow run, after the tasks of the phases that it depends on.

    If agents run in their own processes (Ray), tasks are submitted, and Prefect starts each once its predecessors are
    done. If agents share this process, tasks run immediately in the main thread, where Ctrl-C reaches them. After a
    failure, no further phase starts.

    All state is in the step store: tasks have no cache and persist no result. A task's only parameters are the
    phase's key (`v1/<experiment>/<phase>/<step>`) and its title.
    """

    def __init__(self, plan: Plan) -> None:
        self._experiment, self._runtime = plan.id, plan.config.runtime
        self._is_concurrent = plan.config.placement.kind == "ray"
        self._work: dict[str, Callable[[], None]] = {}
        self._tasks: dict[tuple[str, bool], Task[..., None]] = {}
        self._submitted: list[PrefectFuture[None]] = []
        self._attempts: Counter[str] = Counter()
        self._failure: Exception | None = None
        """error of the first phase that failed after all retries"""
        self._has_ended = False

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run the phase as a task, now or once everything in `after` is done.

        Raises:
            ServerError: Prefect failed, not the phase; its client has already retried.
        """
        key = f"v1/{self._experiment}/{phase.name}/{phase.step}"
        title = " · ".join(str(part) for part in (f"step {phase.step}", phase.kind, phase.agent) if part)
        self._work[key] = work
        before: Any = [handle.run for handle in after if isinstance(handle, _TaskHandle)]
        phase_task = self._task(phase)
        if self._is_concurrent:
            future = phase_task.submit(key=key, title=title, wait_for=before)
            self._submitted.append(future)
            return _TaskHandle(future, lambda: self._finish(title, future))
        try:
            state: State[None] = phase_task(key=key, title=title, wait_for=before, return_state=True)
        except Exception as error:
            raise self._cause(title, error) from error
        self._check(title, state)
        return _TaskHandle(state, lambda: None)

    def wait(self) -> None:
        """Start nothing more, and wait for the tasks in progress."""
        self._has_ended = True
        for future in self._submitted:
            future.wait()
        self._submitted.clear()

    def _finish(self, title: str, future: PrefectFuture[None]) -> None:
        """Wait for a submitted task, and raise its error."""
        future.wait()
        self._check(title, future.state)

    def _check(self, title: str, state: State[None]) -> None:
        if not state.is_completed():
            error: Exception = state.result(raise_on_failure=False)  # type: ignore[assignment]
            cause = self._cause(title, error)
            raise cause from (None if cause is error else error)

    def _cause(self, title: str, error: Exception) -> Exception:
        """Error of the first phase that failed after all retries; if there is none, Prefect itself failed."""
        message = f"Prefect did not run {title}: {first_line(error)}; continue with `hacpo resume`"
        return self._failure or ServerError(message)

    def _run(self, key: str) -> None:
        """Run a phase; an error of its last attempt is kept as the cause of the experiment's failure."""
        if self._has_ended or self._failure is not None:
            raise PhaseSkippedError(f"{key}: not started, because another phase failed")
        self._attempts[key] += 1
        try:
            restarting(self._work[key])
        except Exception as error:
            is_last = self._attempts[key] > PHASE_RETRIES or isinstance(error, NEVER_RETRIED)
            if is_last and self._failure is None:
                self._failure = error
            raise
        del self._work[key], self._attempts[key]

    def _task(self, phase: Phase) -> Task[..., None]:
        kind = (phase.kind, phase.needs_gpu)
        if kind not in self._tasks:

            def run_phase(key: str, title: str) -> None:
                self._run(key)

            phase_task = task(
                name=phase.kind,
                task_run_name="{title}",
                tags=["gpu"] if phase.needs_gpu else [],
                retries=PHASE_RETRIES,
                retry_delay_seconds=RETRY_DELAY_S,
                retry_condition_fn=_may_retry,
                cache_policy=NO_CACHE,
                persist_result=False,
            )
            self._tasks[kind] = phase_task(run_phase)
        return self._tasks[kind]


@dataclass(frozen=True, slots=True)
class _TaskHandle:
    """Handle of a phase that runs as a task; later tasks wait for `run`."""

    run: PrefectFuture[None] | State[None]
    check: Callable[[], None]

    def result(self) -> None:
        """Wait for the phase; raises its error."""
        self.check()
