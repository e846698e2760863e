"""Runs a function on several ranks of a gloo group, each a process of its own, and brings their results back."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 240
PRELOADED = [
    "tests.engines.training",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.muon.muon_optimizer",
]


def on_ranks(num_ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns on each rank; it must be importable."""
    context = multiprocessing.get_context("forkserver")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        torch.save((function, arguments), Path(folder) / "call.pt")
        processes = [context.Process(target=_rank, args=(folder, rank, num_ranks)) for rank in range(num_ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT_S)
        hanging = [process for process in processes if process.exitcode is None]
        for process in hanging:
            process.kill()
            process.join()
        assert not hanging, f"{len(hanging)} of {num_ranks} ranks hang"
        assert [process.exitcode for process in processes] == [0] * num_ranks
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]


def _rank(folder: str, rank: int, num_ranks: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), num_ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=TIMEOUT_S / 2)
    )
    function, arguments = torch.load(Path(folder) / "call.pt", weights_only=False)
    torch.save(function(*arguments), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
