"""Addresses of the tracking store and of servers; needs no MLflow."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hacpo_core.errors import ConfigError, TrackingError

STATE_FILE = "mlflow.json"
"""in an experiment's folder: which runs in MLflow are its own"""
_SQLITE = "sqlite:///"
_PASSWORD = re.compile(r"://[^@/]*:[^@]*@|[?&](password|passwd|sslpassword)=", re.IGNORECASE)


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


def store_error(uri: str, what: str) -> TrackingError:
    """What is wrong with a tracking store, and what to do; an address that holds a password is not repeated."""
    shown = uri.partition("://")[0] if has_password(uri) else uri
    return TrackingError(
        f"MLflow's store {shown}: {what.rstrip('.')}; mend that or name another (tracking.uri), then the same command "
        "goes on from here (with tracking.enabled=false without MLflow)"
    )
