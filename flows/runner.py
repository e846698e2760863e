"""Phases as Prefect tasks: names that a person can read, the `gpu` tag, retries with a condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Task, flow, task
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Crashed

from flows.display import QuietWatcher, Watcher
from flows.experiment import run_experiment
from flows.plans import Plan, find_plan
from flows.schedule import answers
from hacpo_core.background import Background
from hacpo_core.config import RuntimeConfig
from hacpo_core.errors import ConfigError, DataError, LockedError, ModelError, ReplayError, ServerError, first_line
from hacpo_core.phases.runner import Done, Handle, Phase

UPDATE_EVERY_S = 5.0
NEVER_RETRIED = (ConfigError, DataError, ModelError, LockedError, ReplayError, KeyboardInterrupt)


def _may_retry(_task: Any, _run: Any, state: Any) -> bool:
    return not isinstance(state.result(raise_on_failure=False), NEVER_RETRIED)


class PrefectRunner:
    """Runs each phase as a task of the flow run that it is called in.

    The step store is the truth: tasks have no cache and keep no result. A task's only parameters are the phase's
    explicit key (`v1/<experiment>/<phase>/<step>`) and its title.
    """

    def __init__(self, experiment: str, runtime: RuntimeConfig) -> None:
        self._experiment = experiment
        self._runtime = runtime
        self._work: dict[str, Callable[[], None]] = {}
        self._tasks: dict[tuple[str, bool], Task[..., None]] = {}

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run the phase as a task, now; all of `after` is done by then.

        Raises:
            ServerError: the work is not at fault, Prefect is; its client has waited for the server by then.
        """
        key = f"v1/{self._experiment}/{phase.name}/{phase.step}"
        title = " · ".join(str(part) for part in (f"step {phase.step}", phase.kind, phase.agent) if part)
        raised: list[Exception] = []

        def noted() -> None:
            raised.clear()  # a failed attempt's error holds all that it had in memory
            try:
                work()
            except Exception as error:
                raised.append(error)
                raise

        self._work[key] = noted
        try:
            self._task(phase)(key=key, title=title)
        except Exception as error:
            if raised:  # Prefect may have failed as well, while it handled that
                raise raised[0] from (None if error is raised[0] else error)
            raise ServerError(
                f"Prefect did not run {title}: {first_line(error)}; `hacpo resume` goes on from here"
            ) from error
        finally:
            raised.clear()
            del self._work[key]
        return Done()

    def _task(self, phase: Phase) -> Task[..., None]:
        kind = (phase.kind, phase.needs_gpu)
        if kind not in self._tasks:

            def run_phase(key: str, title: str) -> None:
                self._work[key]()

            configured = task(
                name=phase.kind,
                task_run_name="{title}",
                tags=["gpu"] if phase.needs_gpu else [],
                retries=self._runtime.phase_retries,
                retry_delay_seconds=self._runtime.retry_delay_s,
                retry_condition_fn=_may_retry,
                cache_policy=NO_CACHE,
                persist_result=False,
            )
            self._tasks[kind] = configured(run_phase)
        return self._tasks[kind]


class ProgressWatcher:
    """Shows progress in Prefect's page, without waiting for it, and passes everything on to another watcher."""

    def __init__(self, inner: Watcher, experiment: str) -> None:
        self._inner, self._experiment = inner, experiment
        self._thread = Background("progress")
        self._artifact: UUID | None = None
        self._shown_at = 0.0

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """Passed on."""
        self._inner.warmed_up(agent, step, num_steps, loss)

    def evaluated(self, step: int, split: str, agent: str, accuracy: float) -> None:
        """Passed on."""
        self._inner.evaluated(step, split, agent, accuracy)

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """Update the progress artifact: step, reward per agent, time left; no more often than a person can follow."""
        self._inner.stepped(step, num_steps, metrics, seconds_left)
        if step < num_steps and time.monotonic() - self._shown_at < UPDATE_EVERY_S:
            return
        self._shown_at = time.monotonic()
        rewards = ", ".join(f"{k} {value['reward/mean']:.3f}" for k, value in metrics["agents"].items())
        text = f"step {step} of {num_steps} · reward {rewards} · {seconds_left or 0:.0f} s left"
        self._thread.do(partial(copy_context().run, self._show, 100.0 * step / num_steps, text))

    def end(self) -> None:
        """Wait until all is shown; raises a ServerError where Prefect's server did not answer."""
        self._thread.wait()

    def _show(self, percent: float, text: str) -> None:
        with answers():
            if self._artifact is None:
                self._artifact = create_progress_artifact(progress=percent, description=text)  # type: ignore[assignment]
            else:
                update_progress_artifact(artifact_id=self._artifact, progress=percent, description=text)


# Who watches the flow that this process starts; a deployment's own process has nobody to show anything to.
watcher_of_flow: ContextVar[Watcher] = ContextVar("watcher_of_flow", default=QuietWatcher())  # noqa: B039  stateless


@flow(name="experiment", flow_run_name="{experiment}", persist_result=False)
def experiment_flow(experiment: str, runs_dir: str) -> list[dict[str, Any]] | State[Any]:
    """Train one planned experiment, phase by phase as tasks, from wherever its store stands.

    A run that Prefect failed, or that another process's lock kept out, crashed: the reconciler starts it again.

    Args:
        experiment: id; its resolved configuration lies in its folder.
        runs_dir: folder that holds `experiments/<id>/`.

    Returns:
        the result table's rows; a state that raises its error where it crashed.
    """
    plan = find_plan(Path(runs_dir), experiment)
    runner = PrefectRunner(plan.id, plan.config.runtime)
    try:
        watcher = ProgressWatcher(watcher_of_flow.get(), plan.id)
        result = run_experiment(plan, runner, watcher)
        watcher.end()
        with answers():
            create_table_artifact(table=result.table, key="result", description=f"Result of {plan.id}")
    except (LockedError, ServerError) as error:
        return Crashed(message=str(error), data=error)
    return result.table


def run_with_prefect(plan: Plan, watcher: Watcher) -> None:
    """Run the experiment flow in this process."""
    with watched_by(watcher):
        experiment_flow(experiment=plan.id, runs_dir=str(Path(plan.config.runtime.runs_dir).absolute()))


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Flows that are run inside show what happens to this watcher."""
    token = watcher_of_flow.set(watcher)
    try:
        yield
    finally:
        watcher_of_flow.reset(token)
