"""Where experiments are tracked: the address of MLflow's store, and the file with the runs' ids; needs no MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from hacpo_core.config.addresses import has_password, is_server
from hacpo_core.errors import ConfigError

STATE_FILE = "mlflow.json"
"""file in an experiment's folder with the ids of its MLflow runs; in the runs folder, with the id of the MLflow
experiment that holds the results of grids"""
VIEW_KEY = "hacpo"
"""name of the view of MLflow's runs whose columns hacpo chooses, in the address `viewStateShareKey`"""
_SQLITE = "sqlite:///"


def tracking_uri(configured_uri: str | None, runs_dir: Path) -> str:
    """The configured store, else MLFLOW_TRACKING_URI, else a SQLite file in `runs_dir`.

    Raises:
        ConfigError: it is the address of a server and contains a password, which errors would show.
    """
    uri = configured_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{runs_dir.absolute() / 'mlflow.db'}"
    if is_server(uri) and has_password(uri):
        raise ConfigError(
            "MLFLOW_TRACKING_URI: contains a password, which MLflow repeats in errors; set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD instead"
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """File of a SQLite tracking URI, None for any other store."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None
