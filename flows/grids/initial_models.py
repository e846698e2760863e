"""Make the initial models of many experiments in parallel, before the experiments are queued."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from flows.planning.plans import Plan, initial_models
from flows.service.processes import end_with_parent
from hacpo_core.config.threads import usable_cores
from hacpo_core.errors import EngineError
from hacpo_core.placement.initial_model import SHIPPED_MODELS


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
    for folder in [folder for folder in missing_models if (SHIPPED_MODELS / folder.name).is_dir()]:
        missing_models.pop(folder).make()  # copied
    if not missing_models:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hacpo_core.warm_up.training"])  # imported once for all processes
    num_processes = min(num_workers, len(missing_models))
    max_threads = max(1, usable_cores() // num_processes)
    print(f"making {len(missing_models)} initial models", file=sys.stderr)
    with ProcessPoolExecutor(num_processes, mp_context=context, initializer=end_with_parent) as workers:
        jobs = {
            workers.submit(replace(model, num_threads=min(model.num_threads, max_threads)).make): model.name
            for model in missing_models.values()
        }
        for job in as_completed(jobs):
            try:
                job.result()
            except BrokenProcessPool as error:
                raise EngineError(f"{jobs[job]}: its process died (killed, or out of memory); try again") from error
            print(f"initial model of {jobs[job]}: done", file=sys.stderr)
