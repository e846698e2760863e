"""MLflow's store: brings runs to a given content. Only this file imports mlflow.

A SQLite store is switched to WAL mode and migrated once, under a lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from flows.records.mlflow_address import VIEW_KEY, sqlite_path, sqlite_uri
from hacpo_core.config.addresses import has_password, is_server, without_password
from hacpo_core.errors import TrackingError, first_line

_log = logging.getLogger(__name__)
_MAX_PARAMS, _MAX_VALUES = 100, 1000  # per call
_KEY = "hacpo.key"
"""tag of runs that belong together"""
NUM_RETRIES = 3
"""retries of a request to a server, after 2, 4 and 8 s"""
CONNECT_LIMIT_S = 10
"""time limit of a connection to PostgreSQL"""


@contextmanager
def _in_one_sentence(uri: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert errors of MLflow, its database and the disk, and those of `kinds`, to a TrackingError."""
    expected: tuple[type[Exception], ...] = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, *kinds)
    try:
        yield
    except expected as error:
        message = without_password(f"{uri}: {first_line(error)}").rstrip(".")
        raise TrackingError(
            f"MLflow's store {message}; fix it or set another (tracking.uri or MLFLOW_TRACKING_URI); committed phases "
            "are kept"
        ) from (None if has_password(uri) else error)


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def _configure_clients() -> None:
    """Limit what MLflow logs, and the time that it waits.

    A server that does not respond is given up after about 15 s; by default MLflow waits for four minutes, and
    PostgreSQL's client for ever. What was not sent is sent later. Limits that the user has set are kept.
    """
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it tells every retry
    logging.getLogger("mlflow.store.db.utils").addFilter(_is_no_error)  # MLflow raises the errors that it logs here
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_MAX_RETRIES.name, str(NUM_RETRIES))
    os.environ.setdefault("PGCONNECT_TIMEOUT", str(CONNECT_LIMIT_S))


def prepare_store(uri: str) -> None:
    """Migrate a SQLite store and switch it to WAL mode, one process at a time; check that another store responds.

    A new store is created under a temporary name: if the process is killed halfway, MLflow could not repair it.
    """
    _configure_clients()
    path = sqlite_path(uri)
    if path is None:
        if is_server(uri):
            MlflowClient(uri).search_experiments(max_results=1)
        else:  # MLflow tries a database that is away for most of an hour
            engine = create_engine(uri)
            engine.connect().close()
            engine.dispose()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            for leftover in path.parent.glob(f".{path.name}.*.tmp*"):
                leftover.unlink()
            # a new name each time, because MLflow caches stores by name
            unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
            MlflowClient(sqlite_uri(unfinished)).search_experiments(max_results=1)
            unfinished.rename(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        MlflowClient(uri).search_experiments(max_results=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Metrics of one step; MLflow has all of them if it has the first one's value."""

    step: int
    timestamp_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunContent:
    """What a run should hold.

    `status` is "RUNNING", "FINISHED", "FAILED" or "KILLED". Parameters that MLflow has keep their value: none changes.
    """

    name: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    batches: Sequence[Batch] = ()


class MlflowStore:
    """One MLflow experiment; what was deleted of it on MLflow's page is restored, with a warning.

    Every method raises TrackingError if the store does not respond or rejects data; open it anew after that.
    """

    def __init__(self, uri: str, *, experiment: str) -> None:
        """Connect to the store with this URI; the experiment of this name is made if there is none."""
        self._uri, self._name = uri, experiment
        with _in_one_sentence(uri, ImportError, ValueError):  # missing driver, invalid address
            prepare_store(uri)
            self._client = MlflowClient(uri)
        self.experiment_id = self._experiment_id()
        """MLflow's id of the experiment"""

    def _experiment_id(self) -> str:
        with _in_one_sentence(self._uri):
            experiment = self._client.get_experiment_by_name(self._name)
            if experiment is None:
                try:
                    return str(self._client.create_experiment(self._name))
                except MlflowException:  # another process creates it at the same time
                    experiment = self._client.get_experiment_by_name(self._name)
                    if experiment is None:
                        raise
            if experiment.lifecycle_stage == "deleted":
                self._client.restore_experiment(experiment.experiment_id)
                _log.warning("MLflow's experiment %s was deleted on its page; it is restored", self._name)
            return str(experiment.experiment_id)

    def holds(self, key: str, num_runs: int) -> bool:
        """Whether MLflow has all runs of a key, none of them deleted."""
        with _in_one_sentence(self._uri):
            runs = self._client.search_runs([self.experiment_id], f"tags.`{_KEY}` = '{key}'")
        return len(runs) == num_runs

    def write(self, key: str, contents: Sequence[RunContent]) -> Mapping[str, str]:
        """Bring the runs of a key to their contents; the first one is the parent of the others.

        Returns:
            ids by name.
        """
        self.experiment_id = self._experiment_id()
        with _in_one_sentence(self._uri):
            runs = self._runs(key)
            parent: dict[str, str] = {}
            for content in contents:
                if content.name not in runs:
                    tags = {**parent, _KEY: key, MLFLOW_RUN_NAME: content.name}
                    begun_ms = min((batch.timestamp_ms for batch in content.batches), default=None)
                    runs[content.name] = self._client.create_run(self.experiment_id, begun_ms, tags)
                self._write(runs[content.name], content)
                parent = parent or {MLFLOW_PARENT_RUN_ID: runs[content.name].info.run_id}
        return {content.name: runs[content.name].info.run_id for content in contents}

    def _runs(self, key: str) -> dict[str, Run]:
        """The runs of a key by name; deleted ones are restored."""
        runs = self._client.search_runs([self.experiment_id], f"tags.`{_KEY}` = '{key}'", ViewType.ALL)
        for run in runs:
            if run.info.lifecycle_stage == "deleted":
                self._client.restore_run(run.info.run_id)
                _log.warning("run %s was deleted on MLflow's page; it is restored", run.info.run_name)
        return {run.info.run_name: run for run in runs}

    def _write(self, run: Run, content: RunContent) -> None:
        """Send what the run lacks."""
        params = [Param(name, str(value)) for name, value in content.params.items() if name not in run.data.params]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(run.info.run_id, params=params[start : start + _MAX_PARAMS])
        tags = [RunTag(name, value) for name, value in content.tags.items() if run.data.tags.get(name) != value]
        if tags:
            self._client.log_batch(run.info.run_id, tags=tags)
        metrics: list[Metric] = []
        values_by_name: dict[str, dict[int, float]] = {}
        for batch in content.batches:
            first, first_value = next(iter(batch.values.items()))
            if first not in values_by_name:
                points = self._client.get_metric_history(run.info.run_id, first)
                values_by_name[first] = {p.step: p.value for p in sorted(points, key=lambda p: int(p.timestamp))}
            if values_by_name[first].get(batch.step) != first_value:
                metrics += [Metric(name, float(v), batch.timestamp_ms, batch.step) for name, v in batch.values.items()]
        for start in range(0, len(metrics), _MAX_VALUES):
            self._client.log_batch(run.info.run_id, metrics=metrics[start : start + _MAX_VALUES])
        if run.info.status != content.status:
            if content.status == "RUNNING":
                self._client.update_run(run.info.run_id, status="RUNNING")
            else:
                ended_ms = max((batch.timestamp_ms for batch in content.batches), default=None)
                self._client.set_terminated(run.info.run_id, content.status, ended_ms)

    def add_columns(self, *, params: Sequence[str] = (), tags: Sequence[str] = (), metrics: Sequence[str] = ()) -> None:
        """Add columns to the view of MLflow's table of runs that VIEW_KEY names in its address.

        Tags and parameters stand left of metrics, in this order; a metric's column is as wide as its name.
        """
        tag = f"mlflow.sharedViewState.{VIEW_KEY}"
        with _in_one_sentence(self._uri):
            try:
                before = json.loads(self._client.get_experiment(self.experiment_id).tags[tag])
                columns = list(before["selectedColumns"])
            except (KeyError, TypeError, ValueError):  # none yet, or changed by someone
                before, columns = {}, []
            kinds = {"tags": tags, "params": params, "metrics": metrics}
            columns += ["attributes.`Duration`"]
            columns += [f"{kind}.`{name}`" for kind, names in kinds.items() for name in names]
            order = list(dict.fromkeys(columns))
            places = [name for name in order if not name.startswith("attributes.")]  # MLflow's own stay where they are
            widths = {name: 60 + 7 * len(name) for name in order if name.startswith("metrics.")}  # pixels
            view = {"selectedColumns": order, "columnOrder": places, "columnWidths": widths}
            if view != before:
                self._client.set_experiment_tag(self.experiment_id, tag, json.dumps(view))
