"""Addresses of the tracking store and of servers; needs no MLflow."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hacpo_core.errors import ConfigError

STATE_FILE = "mlflow.json"
"""in an experiment's folder: which runs in MLflow are its own"""
_SQLITE = "sqlite:///"
_PASSWORD = re.compile(r"(://[^@/\s]*:)[^@\s]*(@)|([?&](?:password|passwd|sslpassword)=)[^&\s]*", re.IGNORECASE)


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


def has_password(uri: str) -> bool:
    """Whether an address holds a password, before its host or among its options."""
    return _PASSWORD.search(uri) is not None


def without_password(text: str) -> str:
    """A text with the passwords of the addresses in it left out."""
    return _PASSWORD.sub(lambda match: f"{match[1] or match[3]}…{match[2] or ''}", text)
