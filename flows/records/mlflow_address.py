"""Where MLflow has the experiments, and which have something that it lacks; needs no MLflow."""

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from flows.records.files import experiments_dir
from hacpo_core.config.addresses import has_password, is_server
from hacpo_core.errors import ConfigError, StoreError
from hacpo_core.files import read_json, write_json
from hacpo_core.store.lock import is_locked

STATE_FILE = "mlflow.json"
"""file in an experiment's folder with the key and id of its MLflow run, and whether all was sent (`is_sent`); in the
runs folder, with the id of the MLflow experiment that holds the results of grids"""
VIEW_KEY = "hacpo"
"""name of the view of MLflow's runs whose columns hacpo chooses, in the address `viewStateShareKey`"""
_SQLITE = "sqlite:///"


def tracking_uri(configured_uri: str | None, runs_dir: Path) -> str:
    """The configured store, else MLFLOW_TRACKING_URI, else a SQLite file in `runs_dir`.

    Raises:
        ConfigError: it is the address of a server and contains a password, which errors would show.
    """
    uri = configured_uri or os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(runs_dir.absolute() / "mlflow.db")
    if is_server(uri) and has_password(uri):
        raise ConfigError(
            "MLFLOW_TRACKING_URI: contains a password, which MLflow repeats in errors; set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD instead"
        )
    return uri


def sqlite_uri(path: Path, driver: str = "sqlite") -> str:
    """Address of a SQLite file; what has a meaning in an address, % and ?, is quoted.

    Nothing else is, since MLflow makes an empty folder of the quoted name beside that of the file.
    """
    return f"{driver}:///{str(path).replace('%', '%25').replace('?', '%3F')}"


def sqlite_path(uri: str) -> Path | None:
    """File of a SQLite tracking URI, None for any other store."""
    return Path(unquote(uri.removeprefix(_SQLITE).partition("?")[0])) if uri.startswith(_SQLITE) else None


def read_state(root: Path) -> dict[str, Any]:
    """What STATE_FILE holds; empty if it is missing or corrupt, so that new runs are opened."""
    try:
        value = read_json(root / STATE_FILE)
    except StoreError:
        return {}
    return value if isinstance(value, dict) else {}


def mark_unsent(root: Path) -> str:
    """Record that the experiment has something to send, before the store is asked for anything.

    Returns:
        the key of this folder's training; the same experiment in another folder has another run.
    """
    state = read_state(root)
    key = str(state.get("key") or secrets.token_hex(8))
    write_json(root / STATE_FILE, {**state, "key": key, "is_sent": False})
    return key


def unsent_experiments(runs_dir: Path) -> list[str]:
    """Ids of the experiments that have something to send and that no process trains or evaluates."""
    roots = sorted(path.parent for path in experiments_dir(runs_dir).glob(f"*/{STATE_FILE}"))
    return [root.name for root in roots if read_state(root).get("is_sent") is False and not is_locked(root)]
