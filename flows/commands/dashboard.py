"""`hacpo dashboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import RunsDir
from hacpo_core.errors import ConfigError


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
    prefect: Annotated[bool, typer.Option(help="also start the Prefect server, which keeps running afterwards")] = True,
) -> None:
    """Serve the dashboard of a runs folder, and MLflow's page, until Ctrl-C."""
    try:
        from dashboards.page_server import Options, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"dashboard: {error.name} is missing; pip install 'hacpo[dashboard]'") from error

    serve(runs_dir, Options(host, port, token_file, allow_host or [], prefect))
