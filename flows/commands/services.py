"""`hacpo worker`, `dashboard` and `server`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import RunsDir
from hacpo_core.errors import ConfigError


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
    print(f"worker of {home_of(runs_dir).parent}: {number} at a time; Ctrl-C stops all")
    if not run_worker(runs_dir, num_slots=number):
        running = find_worker(runs_dir)
        print(f"already running{f' (process {running.pid})' if running is not None else ''}; nothing to do")


def dashboard(
    runs_dir: RunsDir = Path("runs"),
    host: Annotated[str, typer.Option(help="address to listen on; off loopback, a token is required")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="default: 8400, or the next free one")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="file with the token; default: none on loopback, otherwise generated once")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="additional host name to accept; a token is required")
    ] = None,
    prefect: Annotated[bool, typer.Option(help="also start the Prefect server")] = True,
) -> None:
    """Serve the dashboard of a runs folder, and MLflow's page, until Ctrl-C."""
    try:
        from dashboards.page_server import Options, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"dashboard: {error.name} is missing; pip install 'hacpo[dashboard]'") from error

    serve(runs_dir, Options(host, port, token_file, allow_host or [], prefect))


server_app = typer.Typer(no_args_is_help=True, help="Manage the local Prefect server.")


@server_app.command("start")
def server_start(runs_dir: RunsDir = Path("runs")) -> None:
    """Start the server unless it is running, and print its address; it stays until `hacpo server stop`."""
    from flows.service.prefect_server import end_when_idle, ensure_server, log_in_hint

    server = ensure_server(runs_dir)
    end_when_idle(runs_dir, None)
    print(f"{server.url}  ({log_in_hint(runs_dir)})")


@server_app.command("stop")
def server_stop(runs_dir: RunsDir = Path("runs")) -> None:
    """Stop the server of this runs folder."""
    from flows.service.prefect_server import stop_server

    print("stopped" if stop_server(runs_dir) else "no server was running here")


@server_app.command("status")
def server_status(runs_dir: RunsDir = Path("runs")) -> None:
    """Print whether the server runs and responds; exit code 1 if it does not."""
    from flows.service.prefect_server import find_server, is_healthy
    from flows.service.worker import find_worker

    server = find_server(runs_dir)
    if server is None:
        print("not running here")
        raise typer.Exit(1)
    is_up = is_healthy(server)
    print(f"{server.url} {'healthy' if is_up else 'does not answer'}")
    worker = find_worker(runs_dir)
    print(f"worker: {'none' if worker is None else f'process {worker.pid}'}")
    if not is_up:
        raise typer.Exit(1)
