"""The demo: every method on the embedded pair, as many experiments at a time as there are cores."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from flows.build import Plan, models_dir, plan, save_plan
from flows.compose import compose
from flows.display import format_table, move
from flows.experiment import read_final
from flows.report import write_report
from flows.server import ServerRecord, auth_file, ensure_server, find_server, use_server
from hacpo_core.tiny.models import ensure_tiny_model, tiny_model_folder
from hacpo_core.validation import num_minibatches

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_messages: Any = None


def run_demo(
    *, pair: str, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], runs_dir: Path
) -> None:
    """Train the pair with every method and seed, then print the table and where to look.

    Raises:
        HacpoError: an experiment failed; the others' results stay, and the next call goes on from there.
    """
    started = time.monotonic()
    plans = [
        plan(compose(pair, method, overrides=[*overrides, f"seed={seed}", f"runtime.runs_dir={runs_dir}"]))
        for method in methods
        for seed in seeds
    ]
    waiting = [planned for planned in plans if read_final(planned) is None]
    for planned in plans:
        if planned not in waiting:
            print(f"{planned.id} is complete and is reused.")
    if waiting:
        print(
            "The warm-up plants misconceptions in each model (lost parentheses, lost minus signs, lost operands).\n"
            "Reinforcement learning then has something to remove. The task is sums of three digits, worked in lines."
        )
        for planned in waiting:
            save_plan(planned)
        record = ensure_server(runs_dir)
        print(f"Prefect  {record.url}  (log-in: the text in {auth_file(runs_dir)})")
        _run_all(waiting, record)
    results = [result for result in map(read_final, plans) if result is not None]
    print()
    print(format_table([row for result in results for row in result.table]))
    report = write_report(plans, runs_dir / "demo.html", title=f"hacpo demo: {pair}")
    print(f"\nreport   {report}")
    server = find_server(runs_dir)
    if server is not None:
        print(f"Prefect  {server.url}  (log-in: the text in {auth_file(runs_dir)}; `hacpo server stop` ends it)")
    print(f"MLflow   `make dashboard` serves it; everything lies in {runs_dir / 'mlflow.db'}")
    print(f"took     {time.monotonic() - started:.0f} s")


def _run_all(plans: Sequence[Plan], record: ServerRecord) -> None:
    """Warm-ups first, then the experiments, side by side in processes of their own; bars for all of them."""
    context = multiprocessing.get_context("spawn")
    messages = context.SimpleQueue()
    config = plans[0].config
    tiny = {name: agent.tiny for name, agent in config.pair.agents.items() if agent.tiny is not None}
    cold = {k: model for k, model in tiny.items() if not tiny_model_folder(model, models_dir(config)).is_dir()}
    totals = {f"warm-up {k}": model.warmup.steps for k, model in cold.items()}
    totals |= {planned.id: planned.config.train.num_steps for planned in plans}
    num_workers = min(os.cpu_count() or 1, max(len(plans), len(cold)))
    bars = {name: tqdm(total=total, desc=name, position=i) for i, (name, total) in enumerate(totals.items())}
    pool = ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_start_worker, initargs=(messages, record, config)
    )
    try:
        futures = [pool.submit(_warm_up, name, model, models_dir(config)) for name, model in cold.items()]
        _follow(futures, messages, bars)
        longest_first = sorted(plans, key=lambda planned: -num_minibatches(planned.config))
        futures = [pool.submit(_train, planned.id, planned.root.parents[1]) for planned in longest_first]
        _follow(futures, messages, bars)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for bar in bars.values():
            bar.close()


def _follow(futures: Sequence[Any], messages: Any, bars: Mapping[str, tqdm[Any]]) -> None:
    pending = set(futures)
    while pending:
        while not messages.empty():
            name, position, note = messages.get()
            move(bars[name], position, note)
        for future in [future for future in pending if future.done()]:
            pending.remove(future)
            future.result()
        time.sleep(0.1)


def _start_worker(messages: Any, record: ServerRecord, config: Any) -> None:
    global _messages
    _messages = messages
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a demo that is killed leaves nothing running
    use_server(record, Path(config.runtime.runs_dir))


def _warm_up(name: str, model: Any, cache: Path) -> None:
    def progress(step: int, num_steps: int, loss: float) -> None:
        if step % 10 == 0 or step == num_steps:
            _messages.put((f"warm-up {name}", step, f"loss {loss:.3f}"))

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
        _messages.put((self._name, step, f"reward {rewards}"))


def _train(experiment: str, runs_dir: Path) -> None:
    from flows.build import find_plan
    from flows.runner import run_with_prefect

    run_with_prefect(find_plan(runs_dir, experiment), _QueueWatcher(experiment))
