"""Run many experiments through the workers' queue: make initial models first, then show progress until all end."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from flows.planning.plans import Plan, initial_models
from flows.records.failures import Failure
from flows.records.progress import Progress
from flows.records.states import experiment_status
from flows.runs.display import move
from flows.service.processes import end_with_parent
from flows.service.schedule import RefusedError, Schedule, ScheduledRun
from hacpo_core.config.threads import usable_cores
from hacpo_core.errors import EngineError, ServerError
from hacpo_core.phases.health import Finding
from hacpo_core.placement.initial_model import InitialModel

LOOK_EVERY_S, ASK_EVERY_S = 0.5, 2.0
_messages: Any = None


def make_initial_models(plans: Sequence[Plan], *, num_workers: int) -> None:
    """Make the agents' missing initial models in parallel: tiny, converted or warmed up.

    Those that are warmed up on a GPU are left to their runs, which take a GPU first.

    Raises:
        HacpoError: one of them could not be made.
        EngineError: its process died.
    """
    models = [model for plan in plans for model in initial_models(plan.config).values() if model.device == "cpu"]
    missing_models = {model.folder: model for model in models}
    missing_models = {folder: model for folder, model in missing_models.items() if not folder.is_dir()}
    if not missing_models:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hacpo_core.warm_up.training"])  # imported once for all processes
    messages = context.SimpleQueue()
    num_processes = min(num_workers, len(missing_models))
    workers = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_start_process, initargs=(messages,))
    max_threads = max(1, usable_cores() // num_processes)
    with workers, _Bars(len(missing_models)) as bars:
        open_jobs = {}
        for folder, model in missing_models.items():
            label = f"warm-up {model.name} {folder.name[-4:]}"
            model = replace(model, num_threads=min(model.num_threads, max_threads))
            open_jobs[workers.submit(_make, label, model)] = label
        while open_jobs:
            while not messages.empty():
                bars.show(*messages.get())
            for job in [job for job in open_jobs if job.done()]:
                name = open_jobs.pop(job)
                bars.finish(name, "")
                try:
                    job.result()
                except BrokenProcessPool as error:
                    raise EngineError(f"{name}: its process died (killed, or out of memory); try again") from error
            time.sleep(0.1)


def _start_process(messages: Any) -> None:
    global _messages
    _messages = messages
    end_with_parent()


def _make(label: str, model: InitialModel) -> None:
    def progress(step: int, num_steps: int, loss: float) -> None:
        if step % 10 == 0 or step == num_steps:
            _messages.put((label, step, num_steps, f"loss {loss:.3f}"))

    model.make(progress=progress)


def watch(
    plans: Sequence[Plan],
    schedule: Schedule,
    revive: Callable[[], Schedule],
    check: Callable[[], None],
    *,
    priority: str = "normal",
) -> dict[str, str]:
    """Queue experiments and show their progress until each is complete, has failed or was cancelled.

    An experiment that another process trains is queued if that process ends without a result. Only a cancellation of a
    flow run that was live while this function watched it counts: an earlier one is not about this call.

    Args:
        plans: experiments that are not complete, the first to be queued first.
        schedule: of their runs folder.
        revive: restarts a server that does not answer, possibly at another address.
        check: called regularly; raises if waiting is pointless.
        priority: queue.

    Returns:
        reason by id of the experiments that failed or were cancelled; the others are complete.
    """
    open_experiments = {plan.id: plan.root for plan in plans}
    reasons: dict[str, str] = {}
    watched_runs: dict[str, str] = {}
    event_keys: set[Any] = set()
    for plan in plans:  # findings of earlier attempts
        event_keys |= {(plan.id, event.key) for event in _health_events(experiment_status(plan.root).progress)}
    runs: Mapping[str, ScheduledRun] = {}
    asked_at = -math.inf
    with _Bars(len(open_experiments)) as bars:
        while open_experiments:
            check()
            is_asked = False
            if time.monotonic() - asked_at > ASK_EVERY_S:
                try:
                    runs, asked_at = schedule.runs(), time.monotonic()
                    watched_runs |= {run.experiment: run.id for run in runs.values() if run.is_live}
                    is_asked = True
                except ServerError:
                    schedule = revive()
            for name, root in list(open_experiments.items()):
                status, run = experiment_status(root), runs.get(name)
                if status.state == "running" and status.progress is not None:
                    progress = status.progress
                    bars.show(name, progress.step, progress.num_steps, progress.brief_reward)
                for event in _health_events(status.progress):
                    if (name, event.key) not in event_keys:
                        event_keys.add((name, event.key))
                        tqdm.write(f"{name}: {event.message}", file=sys.stderr)
                reason = None if root.is_dir() else "its folder was deleted"
                if reason is None and status.state not in ("done", "running"):
                    is_ours = run is not None and watched_runs.get(name) == run.id
                    reason = _why_ended(run if is_ours else None, status.failure)
                    if reason is None and is_asked and not is_ours and (run is None or run.state != "Crashed"):
                        with suppress(ServerError, RefusedError):  # it was queued or has started meanwhile
                            watched_runs[name] = schedule.start(name, priority).id
                if status.state == "done" or reason is not None:
                    del open_experiments[name]
                    bars.finish(name, reason or "")
                    if reason is not None:
                        reasons[name] = reason
            time.sleep(LOOK_EVERY_S)
    return reasons


def _health_events(progress: Progress | None) -> Iterator[Finding]:
    for finding in progress.findings if progress is not None else ():
        yield from finding.events


def _why_ended(run: ScheduledRun | None, failure: Failure | None) -> str | None:
    """Why an experiment that is neither complete nor being trained has ended; None if it will be continued."""
    if run is not None and run.is_live:
        return None
    if run is not None and run.state == "Cancelled":
        return "cancelled"
    if failure is not None:
        return failure.reason
    # The reconciler resubmits a crashed run, or gives up and records a failure.
    return None if run is None or run.state == "Crashed" else f"{run.state.lower()}: {run.message}"


class _Bars:
    """An overall progress bar, and one for each running job."""

    def __init__(self, num_all: int) -> None:
        self._all = tqdm(total=num_all, desc="all", position=0)
        self._bars: dict[str, tqdm[Any]] = {}

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for bar in [*self._bars.values(), self._all]:
            bar.close()

    def show(self, name: str, position: int, total: int, note: str) -> None:
        if name not in self._bars:
            lines_in_use = {bar.pos for bar in self._bars.values()}
            free_line = next(line for line in range(1, len(lines_in_use) + 2) if -line not in lines_in_use)
            self._bars[name] = tqdm(total=total, desc=name, position=free_line, leave=False)
        move(self._bars[name], position, note)

    def finish(self, name: str, reason: str) -> None:
        bar = self._bars.pop(name, None)
        if bar is not None:
            bar.close()
        seconds = "" if bar is None else f" ({bar.format_dict['elapsed']:.0f} s)"
        tqdm.write(f"{name}: {f'FAILED, {reason}' if reason else 'done'}{seconds}", file=sys.stderr)
        self._all.update()
