"""`hacpo worker` and `hacpo reconcile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, RunsDir


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


def reconcile(runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Find runs whose process died unnoticed and resubmit them; a worker does this every 10 s."""
    from flows.service.server import ensure_server, use_server

    server = ensure_server(runs_dir)
    use_server(server, runs_dir)
    from flows.service.host import Timeouts
    from flows.service.reconciler import reconcile_once
    from flows.service.schedule import Schedule

    actions = reconcile_once(Schedule(server, runs_dir), runs_dir, Timeouts())
    print(json.dumps(actions) if as_json else "\n".join(actions) or "nothing to fix")
