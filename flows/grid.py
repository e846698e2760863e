"""Many experiments side by side in processes of this machine, with bars; what failed does not stop the others."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from flows.build import Plan, models_dir, save_plan
from flows.display import move
from flows.failures import record_failure
from flows.server import ServerRecord, use_server
from hacpo_core.config import TinyModelConfig
from hacpo_core.errors import EngineError
from hacpo_core.tiny.models import ensure_tiny_model, tiny_model_folder
from hacpo_core.validation import num_minibatches

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MOST_DEATHS = 2
"""times that the process of an experiment may die under it before it counts as failed"""
_messages: Any = None
_Job = tuple[Any, ...]


def run_plans(
    plans: Sequence[Plan],
    server: ServerRecord,
    runs_dir: Path,
    *,
    num_workers: int,
    devices: Sequence[str] = (),
) -> dict[str, Exception]:
    """Train every experiment, warm-ups first, as many at a time as there are workers.

    Each goes on from wherever its store stands, so a call that was broken off is simply made again.

    Args:
        plans: none of them complete.
        server: the managed Prefect server.
        runs_dir: folder of all runs.
        num_workers: processes.
        devices: GPUs as CUDA_VISIBLE_DEVICES names them; worker i sees the i-th alone. None: workers see what there is.

    Returns:
        the error of each experiment that failed, by id; the others are complete.

    Raises:
        HacpoError: a tiny model could not be made.
    """
    for planned in plans:
        save_plan(planned)
    workers = [
        _Worker(server, runs_dir, devices[i % len(devices)] if devices else None)
        for i in range(max(1, min(num_workers, len(plans))))
    ]
    try:
        for error in _run_all(_warm_ups(plans), workers).values():
            raise error
        by_id = {planned.id: planned for planned in sorted(plans, key=_num_updates, reverse=True)}
        failed = _run_all({name: (_train, name, runs_dir) for name in by_id}, workers)
        for name, error in failed.items():
            if isinstance(error, _DeathError):
                record_failure(by_id[name].root, error)
        return failed
    finally:
        for worker in workers:
            worker.dismiss()


def visible_devices() -> list[str]:
    """GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return chosen.split(",") if chosen else [str(i) for i in range(torch.cuda.device_count())]


def _num_updates(planned: Plan) -> int:
    return len(planned.config.pair.agents) * num_minibatches(planned.config)


def _warm_ups(plans: Sequence[Plan]) -> dict[str, _Job]:
    cold: dict[Path, tuple[str, _Job]] = {}
    for planned in plans:
        cache = models_dir(planned.config)
        for agent, model in ((k, a.tiny) for k, a in planned.config.pair.agents.items() if a.tiny is not None):
            folder = tiny_model_folder(model, cache)
            name = f"warm-up {agent} {folder.name[-4:]}"
            if not folder.is_dir():
                cold[folder] = (name, (_warm_up, name, model, cache))
    return dict(cold.values())


def _run_all(jobs: Mapping[str, _Job], workers: Sequence[_Worker]) -> dict[str, Exception]:
    """Run the jobs by name, in order; a job whose process dies is tried once more.

    Returns:
        the errors by name.
    """
    waiting, deaths = deque(jobs), Counter[str]()
    failed: dict[str, Exception] = {}
    with _Bars(len(jobs)) as bars:
        while waiting or any(worker.job is not None for worker in workers):
            for worker in workers:
                if worker.job is None and waiting:
                    name = waiting.popleft()
                    worker.start(name, jobs[name])
                name, is_done, error = worker.look(bars)
                if not is_done:
                    continue
                if isinstance(error, BrokenProcessPool):
                    deaths[name] += 1
                    if deaths[name] < MOST_DEATHS:
                        waiting.appendleft(name)
                        continue
                    error = _DeathError(f"its process died {MOST_DEATHS} times (killed, or out of memory)")
                bars.finish(name, error)
                if isinstance(error, Exception):
                    failed[name] = error
                elif error is not None:
                    raise error
            time.sleep(0.1)
    return failed


class _DeathError(EngineError):
    """A process ended without a word."""


class _Worker:
    """One process that runs one job at a time, and is replaced when it dies."""

    def __init__(self, server: ServerRecord, runs_dir: Path, device: str | None) -> None:
        self._server, self._runs_dir, self._device = server, runs_dir, device
        self._pool: ProcessPoolExecutor | None = None
        self.job: str | None = None

    def start(self, name: str, job: _Job) -> None:
        """Begin a job."""
        try:
            self._future = (self._pool or self._recruit()).submit(*job)
        except BrokenProcessPool:  # it died between two jobs
            self._future = self._recruit().submit(*job)
        self.job = name

    def _recruit(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        # The queue is as young as its process: one that is killed may leave the queue's lock taken.
        self._messages = context.SimpleQueue()
        arguments = (self._messages, self._server, self._runs_dir, self._device)
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=arguments)
        return self._pool

    def look(self, bars: _Bars) -> tuple[str, bool, BaseException | None]:
        """The job's name, whether it has ended, and its error; what it reported meanwhile goes to the bars."""
        if self.job is None:
            return "", False, None
        name, is_done = self.job, self._future.done()
        while not self._messages.empty():
            bars.show(*self._messages.get())
        if not is_done:
            return name, False, None
        self.job, error = None, self._future.exception()
        if isinstance(error, BrokenProcessPool):
            self.dismiss()
        return name, True, error

    def dismiss(self) -> None:
        """End the process once it is idle; one that still runs a job got the person's Ctrl-C, too."""
        if self._pool is not None:
            self._pool.shutdown(wait=self.job is None, cancel_futures=True)
            self._pool = None


class _Bars:
    """A bar for all, and one for each experiment that runs."""

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
            taken = {bar.pos for bar in self._bars.values()}
            free = next(slot for slot in range(1, len(taken) + 2) if -slot not in taken)
            self._bars[name] = tqdm(total=total, desc=name, position=free, leave=False)
        move(self._bars[name], position, note)

    def finish(self, name: str, error: BaseException | None) -> None:
        bar = self._bars.pop(name, None)
        if bar is not None:
            bar.close()
        seconds = "" if bar is None else f" ({bar.format_dict['elapsed']:.0f} s)"
        tqdm.write(f"{name}: {'done' if error is None else f'FAILED, {error}'}{seconds}")
        self._all.update()


def _start_worker(messages: Any, server: ServerRecord, runs_dir: Path, device: str | None) -> None:
    global _messages
    _messages = messages
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # read when CUDA starts, which nothing has done yet
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a grid that is killed leaves nothing running
    use_server(server, runs_dir)


def _warm_up(name: str, model: TinyModelConfig, cache: Path) -> None:
    def progress(step: int, num_steps: int, loss: float) -> None:
        if step % 10 == 0 or step == num_steps:
            _messages.put((name, step, num_steps, f"loss {loss:.3f}"))

    ensure_tiny_model(model, cache, progress=progress)


class _QueueWatcher:
    """Sends progress to the process that draws the bars."""

    def __init__(self, name: str) -> None:
        self._name = name

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """All models are warm by now."""

    def evaluated(self, step: int, split: str, agent: str, accuracy: float) -> None:
        """Shown in the table at the end."""

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """Position and reward."""
        rewards = " ".join(f"{value['reward/mean']:.2f}" for value in metrics["agents"].values())
        _messages.put((self._name, step, num_steps, f"reward {rewards}"))


def _train(experiment: str, runs_dir: Path) -> None:
    from flows.build import find_plan
    from flows.runner import run_with_prefect

    planned = find_plan(runs_dir, experiment)
    _messages.put((experiment, 0, planned.config.train.num_steps, f"process {os.getpid()}"))
    run_with_prefect(planned, _QueueWatcher(experiment))
