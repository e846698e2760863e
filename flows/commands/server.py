"""`hacpo server`: start, stop and status."""

from __future__ import annotations

from pathlib import Path

import typer

from flows.commands.options import RunsDir

server_app = typer.Typer(no_args_is_help=True, help="Manage the local Prefect server.")


@server_app.command("start")
def server_start(runs_dir: RunsDir = Path("runs")) -> None:
    """Start the server unless it is running, and print its address."""
    from flows.service.prefect_server import ensure_server, log_in_hint

    print(f"{ensure_server(runs_dir).url}  ({log_in_hint(runs_dir)})")


@server_app.command("stop")
def server_stop(runs_dir: RunsDir = Path("runs")) -> None:
    """Stop the server of this runs folder."""
    from flows.service.prefect_server import other_host, stop_server

    host = other_host(runs_dir)
    here = "no server was running" if host is None else f"the server runs on {host}; stop it there"
    print("stopped" if stop_server(runs_dir) else here)


@server_app.command("status")
def server_status(runs_dir: RunsDir = Path("runs")) -> None:
    """Print whether the server runs and responds; exit code 1 if it does not."""
    from flows.service.prefect_server import find_server, is_healthy, other_host
    from flows.service.worker import find_worker

    server = find_server(runs_dir)
    if server is None:
        host = other_host(runs_dir)
        print("not running" if host is None else f"not running on this host; {host} runs it")
        raise typer.Exit(1)
    is_up = is_healthy(server)
    print(f"{server.url} {'healthy' if is_up else 'does not answer'}")
    worker = find_worker(runs_dir)
    print(f"worker: {'none' if worker is None else f'process {worker.pid}'}")
    if not is_up:
        raise typer.Exit(1)
