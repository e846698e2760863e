"""Make the initial models of many experiments in parallel, before the experiments are queued."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

from flows.planning.plans import Plan, initial_models
from flows.runs.display import Bars
from flows.service.processes import end_with_parent
from hacpo_core.config.threads import usable_cores
from hacpo_core.errors import EngineError
from hacpo_core.placement.initial_model import InitialModel

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
    with workers, Bars() as bars:
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
                try:
                    job.result()
                    bars.finish(name, "done")
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
