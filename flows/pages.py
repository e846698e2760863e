"""MLflow's page on loopback, beside the managed Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flows.server import ensure_server, log_in_hint
from hacpo_core.errors import ConfigError


def serve_pages(runs_dir: Path, port: int) -> None:
    """Print the addresses and serve MLflow's page until it is interrupted.

    Raises:
        ConfigError: nothing was tracked yet.
    """
    if "MLFLOW_TRACKING_URI" in os.environ:
        raise ConfigError("MLFLOW_TRACKING_URI is set: its server has a page; unset it for what lies in --runs-dir")
    database = runs_dir.absolute() / "mlflow.db"
    if not database.is_file():
        raise ConfigError(f"--runs-dir: {database} is not there; run `make demo` or `hacpo train tiny hacpo` first")
    record = ensure_server(runs_dir)
    print(f"Prefect  {record.url}  ({log_in_hint(runs_dir)})")
    print(f"MLflow   http://127.0.0.1:{port}  (ready in about 15 s; Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", f"sqlite:///{database}"]
    subprocess.run([*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"], check=False)


def tracking_hint(runs_dir: Path) -> str:
    """Where a person finds what was tracked."""
    if "MLFLOW_TRACKING_URI" in os.environ:
        return "at the address in MLFLOW_TRACKING_URI"
    return f"`make dashboard` serves it; everything lies in {runs_dir / 'mlflow.db'}"
