"""Many experiments side by side in processes of this machine, with bars; what failed does not stop the others."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

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


def run_plans(plans: Sequence[Plan], server: ServerRecord, runs_dir: Path, *, num_workers: int) -> dict[str, Exception]:
    """Train every experiment, warm-ups first, as many at a time as there are workers.

    Each goes on from wherever its store stands, so a call that was broken off is simply made again.

    Args:
        plans: none of them complete.
        server: the managed Prefect server.
        runs_dir: folder of all runs.
        num_workers: processes.

    Returns:
        the error of each experiment that failed, by id; the others are complete.

    Raises:
        HacpoError: a tiny model could not be made.
    """
    for planned in plans:
        save_plan(planned)
    context = multiprocessing.get_context("spawn")
    crew = _Crew(context, server, runs_dir, num_workers)
    _warm_up_all(plans, crew)
    longest_first = sorted(plans, key=_num_updates, reverse=True)
    waiting = {planned.id: planned for planned in longest_first}
    failed: dict[str, Exception] = {}
    deaths: Counter[str] = Counter()
    with _Bars(len(plans)) as bars:
        while waiting:
            started: set[str] = set()
            with crew.pool(min(num_workers, len(waiting))) as pool:
                futures = {pool.submit(_train, name, runs_dir): name for name in waiting}
                for future in crew.follow(futures, bars, started):
                    name, error = futures[future], future.exception()
                    if isinstance(error, BrokenProcessPool):
                        deaths[name] += name in started
                        if deaths[name] < MOST_DEATHS:
                            continue
                        error = EngineError(f"its process died {MOST_DEATHS} times (killed, or out of memory)")
                        record_failure(waiting[name], error)
                    bars.finish(name, error)
                    if error is not None:
                        failed[name] = error
                    del waiting[name]
    return failed


def _num_updates(planned: Plan) -> int:
    return len(planned.config.pair.agents) * num_minibatches(planned.config)


def _warm_up_all(plans: Sequence[Plan], crew: _Crew) -> None:
    cold: dict[Path, tuple[str, TinyModelConfig, Path]] = {}
    for planned in plans:
        cache = models_dir(planned.config)
        for name, agent in planned.config.pair.agents.items():
            if agent.tiny is not None:
                folder = tiny_model_folder(agent.tiny, cache)
                if not folder.is_dir():
                    cold[folder] = (f"warm-up {name}", agent.tiny, cache)
    if not cold:
        return
    with _Bars(len(cold)) as bars, crew.pool(min(crew.num_workers, len(cold))) as pool:
        futures = {pool.submit(_warm_up, *job): job[0] for job in cold.values()}
        for future in crew.follow(futures, bars, set()):
            future.result()
            bars.finish(futures[future], None)


class _Crew:
    """Makes pools of worker processes and follows what they report."""

    def __init__(self, context: Any, server: ServerRecord, runs_dir: Path, num_workers: int) -> None:
        self._context, self._server, self._runs_dir = context, server, runs_dir
        self.num_workers = num_workers

    def pool(self, num_workers: int) -> _ImpatientPool:
        # A queue of its own: a worker that is killed may leave the queue's lock taken.
        self._messages = self._context.SimpleQueue()
        return _ImpatientPool(
            num_workers,
            mp_context=self._context,
            initializer=_start_worker,
            initargs=(self._messages, self._server, self._runs_dir),
        )

    def follow(self, futures: Mapping[Future[None], str], bars: _Bars, started: set[str]) -> Any:
        """Yield the futures as they end; what the workers report meanwhile goes to the bars."""
        pending = set(futures)
        while pending:
            ended = [future for future in pending if future.done()]
            while not self._messages.empty():
                name, position, total, note = self._messages.get()
                started.add(name)
                bars.show(name, position, total, note)
            pending.difference_update(ended)
            yield from ended
            if pending and not ended:
                time.sleep(0.1)


class _ImpatientPool(ProcessPoolExecutor):
    """Leaving it on an error does not wait for what still runs."""

    def __exit__(self, *exc_info: Any) -> None:
        self.shutdown(wait=exc_info[0] is None, cancel_futures=True)


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


def _start_worker(messages: Any, server: ServerRecord, runs_dir: Path) -> None:
    global _messages
    _messages = messages
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
