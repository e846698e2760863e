"""`hacpo worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import RunsDir


def worker(
    slots: Annotated[
        int | None, typer.Option(min=1, help="experiments at a time; default: one per GPU, without GPUs one per core")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Train queued experiments on this machine until Ctrl-C; running experiments stop then and can be resumed."""
    from flows.service.processes import home_of
    from flows.service.worker import default_slots, find_worker, run_worker

    number = slots or default_slots()
    print(f"worker of {home_of(runs_dir).parent}: {number} at a time; Ctrl-C stops all", flush=True)
    if not run_worker(runs_dir, num_slots=number):
        running = find_worker(runs_dir)
        print(f"already running{f' (process {running.pid})' if running is not None else ''}; nothing to do")
