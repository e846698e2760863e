"""`hacpo dashboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import RunsDir
from hacpo_core.errors import ConfigError


def dashboard(
    runs_dir: RunsDir = Path("runs"),
    host: Annotated[str, typer.Option(help="address to listen on; off loopback a token is required")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="default: 8400, or the next free one")] = None,
    token_file: Annotated[Path | None, typer.Option(help="holds the token; default off loopback: made once")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="another name that it answers to; a token is required")
    ] = None,
    prefect: Annotated[bool, typer.Option(help="start Prefect's server, too; it stays")] = True,
) -> None:
    """Serve the page of a runs folder, and MLflow's, until Ctrl-C."""
    try:
        from dashboards.serve import Options, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"dashboard: {error.name} is missing; pip install 'hacpo[dashboard]'") from error

    serve(runs_dir, Options(host, port, token_file, allow_host or [], prefect))
