"""Address of the tracking store; needs no MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from hacpo_core.errors import ConfigError
from hacpo_core.validation import has_password

_SQLITE = "sqlite:///"


def tracking_uri(configured: str | None, runs_dir: Path) -> str:
    """The configured store, else the one that MLFLOW_TRACKING_URI names, else SQLite beside the runs.

    Raises:
        ConfigError: it is a server's address and holds a password, which errors would show.
    """
    uri = configured or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{runs_dir.absolute() / 'mlflow.db'}"
    if is_server(uri) and has_password(uri):
        raise ConfigError(
            "MLFLOW_TRACKING_URI: holds a password, which MLflow repeats in errors; set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD in its place"
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """File of a SQLite tracking URI, None for any other store."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def is_server(uri: str) -> bool:
    """Whether a tracking server answers at the address: it keeps the artifacts, too."""
    return uri.startswith(("http://", "https://"))
