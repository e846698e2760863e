"""An experiment as a flow run of Prefect: the flow that workers and `hacpo train` run, whose tasks are its phases."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prefect import Flow, Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.futures import PrefectFuture
from prefect.runtime import deployment
from prefect.states import Cancelled, Crashed

from flows.planning.plans import Plan, find_plan
from flows.process import configure_process, ignore_broken_output
from flows.records.runlog import log_entry
from flows.records.watcher import Watcher
from flows.runs.experiment import run_experiment
from hacpo_core.errors import (
    ConfigError,
    DataError,
    HacpoError,
    LockedError,
    MethodError,
    ModelError,
    ReplayError,
    ServerError,
    first_line,
)
from hacpo_core.phases.runner import Handle, Phase, restarting

_INTERRUPTIONS = (
    "Execution was aborted by an interrupt signal.",
    "Execution was aborted by a termination signal.",
    "Engine execution interrupted by base exception",
)
"""parts of what Prefect logs as errors of a run that was ended from outside"""


# Watcher of a command's run, which holds the experiment's lock; None: a worker's run, which has no display.
_watcher_of_command: ContextVar[Watcher | None] = ContextVar("watcher_of_command", default=None)


@flow(name="experiment", flow_run_name="{experiment}", persist_result=False)
def experiment_flow(experiment: str, runs_dir: str) -> list[dict[str, Any]] | State[Any]:
    """Train one planned experiment; each phase is a task. Training continues from the last committed phase.

    If Prefect fails, or another process holds the experiment's lock, the run ends as Crashed, and the reconciler
    resubmits it. A command's run that is interrupted ends as Cancelled; a worker's run is ended by Prefect.

    Args:
        experiment: id; its resolved configuration is in its folder.
        runs_dir: folder that contains `experiments/<id>/`.

    Returns:
        rows of the result table, or a Crashed state.
    """
    configure_process()
    own_watcher = _watcher_of_command.get()
    if own_watcher is None:
        ignore_broken_output()
        for name in ("prefect.engine", "prefect.flow_runs", "prefect.task_runs"):
            logging.getLogger(name).addFilter(_is_no_traceback_of_ours)
    plan = find_plan(Path(runs_dir), experiment)
    runner = PrefectRunner(plan)
    try:
        result = run_experiment(plan, runner, own_watcher, has_lock=own_watcher is not None)
    except (LockedError, ServerError) as error:
        return Crashed(message=str(error), data=error)
    except (KeyboardInterrupt, TerminationSignal):
        if deployment.id is not None:
            raise
        return Cancelled(message="interrupted; `hacpo resume` continues from the last committed phase")
    return result.table


def run_with_prefect(plan: Plan, watcher: Watcher | None = None) -> None:
    """Run the experiment flow in this process, which holds the experiment's lock.

    Raises:
        ServerError: the server does not answer.
        KeyboardInterrupt: on Ctrl-C, and on SIGTERM.
    """
    runs_dir = str(Path(plan.config.runtime.runs_dir).absolute())
    token = _watcher_of_command.set(watcher or Watcher())
    try:
        run_flow(experiment_flow, experiment=plan.id, runs_dir=runs_dir)
    finally:
        _watcher_of_command.reset(token)


def run_flow(flow_to_run: Flow[..., Any], **parameters: Any) -> Any:
    """Run a flow in this process and return its result, or raise its error.

    Raises:
        ServerError: Prefect, and nothing that the flow runs, failed.
        KeyboardInterrupt: the flow was cancelled.
    """
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_interruption)
    message = f"Prefect did not run the flow {flow_to_run.name}"
    try:
        state: Any = flow_to_run(**parameters, return_state=True)
    except Exception as error:  # those of the flow itself are in its state
        raise ServerError(f"{message}: {first_line(error)}; see `hacpo server status`") from error
    if state.is_cancelled():
        raise KeyboardInterrupt
    try:
        return state.result()
    except (PrefectException, httpx.HTTPError) as error:
        raise ServerError(f"{message}: {first_line(error)}; see `hacpo server status`") from error


def _is_no_traceback_of_ours(record: logging.LogRecord) -> bool:
    """Whether a record is anything but Prefect's traceback of a HacpoError, whose sentence is in the run's state."""
    return not (record.exc_info and isinstance(record.exc_info[1], HacpoError))


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Whether a record is anything but Prefect's error about Ctrl-C or SIGTERM, which the command reports itself."""
    return not (record.name.startswith("prefect.") and any(part in record.getMessage() for part in _INTERRUPTIONS))


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
