"""MLflow's store: runs, their parameters, tags, metrics and artifacts, and the columns of its table.

Only this file imports mlflow. A SQLite store is switched to WAL mode and migrated once, under a lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote, urlparse

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from flows.records.mlflow_address import VIEW_KEY, sqlite_path
from hacpo_core.config.addresses import has_password, is_server, without_password
from hacpo_core.errors import TrackingError, first_line

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
_MAX_PARAMS, MAX_POINTS = 100, 1000  # per call
_TRIES = 5
_TABLES_TAG = "mlflow.loggedArtifacts"
NUM_RETRIES = 3
"""retries of a request to a server, after 2, 4 and 8 s"""
CONNECT_LIMIT_S = 10
"""time limit of a connection to PostgreSQL"""
_Method = TypeVar("_Method", bound=Callable[..., Any])


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


def _raises_one_kind(method: _Method) -> _Method:
    """Decorator of a method that converts the store's errors to TrackingError."""

    @wraps(method)
    def inner(self: MlflowStore, *args: Any, **kwargs: Any) -> Any:
        with _in_one_sentence(self._uri):
            return method(self, *args, **kwargs)

    return cast(_Method, inner)


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def _configure_clients() -> None:
    """Limit what MLflow logs, and the time that it waits.

    A server that does not respond is given up after about 15 s; by default MLflow waits for four minutes, and
    PostgreSQL's client for ever. What was not sent is sent later. Limits that the user has set are kept.
    """
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
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
            MlflowClient(f"sqlite:///{unfinished}").search_experiments(max_results=1)
            unfinished.rename(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        MlflowClient(uri).search_experiments(max_results=1)


def _follow_artifacts(uri: str, experiment: str, artifacts: Path) -> None:
    """Update the absolute artifact paths in a store that was moved together with its artifacts."""
    existing = MlflowClient(uri).get_experiment_by_name(experiment)
    old_uri, new_uri = existing.artifact_location if existing is not None else "", artifacts.as_uri()
    if old_uri in ("", new_uri) or Path(unquote(urlparse(old_uri).path)).is_dir():
        return
    _log.info("%s: artifacts moved from %s to %s", uri, old_uri, new_uri)
    with closing(sqlite3.connect(sqlite_path(uri) or "")) as connection, connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                (new_uri, len(old_uri) + 1, len(old_uri), old_uri),
            )


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric; the same point with the same time is stored once."""

    name: str
    value: float
    step: int
    timestamp_ms: int


class MlflowStore:
    """The runs of one MLflow experiment. Every method raises TrackingError if the store does not take it."""

    def __init__(self, uri: str, *, experiment: str, artifacts: Path) -> None:
        """Open or create the experiment.

        Args:
            uri: tracking URI.
            experiment: its name.
            artifacts: folder for artifacts of a new experiment; a tracking server uses its own.

        Raises:
            TrackingError: the store does not respond, cannot be opened or rejects data.
        """
        self._uri = uri
        with _in_one_sentence(uri, ImportError, ValueError):  # missing driver, invalid address
            prepare_store(uri)
            self._client = MlflowClient(uri)
            place = None if is_server(uri) else artifacts.absolute().as_uri()
            if sqlite_path(uri) == artifacts.absolute().with_name("mlflow.db"):
                _follow_artifacts(uri, experiment, artifacts.absolute())
            self.experiment_id = self._find_experiment(experiment, place)
            """MLflow's id of the experiment"""

    def _find_experiment(self, name: str, artifacts: str | None) -> str:
        existing = self._client.get_experiment_by_name(name)
        if existing is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except MlflowException:  # another process created it in between
                existing = self._client.get_experiment_by_name(name)
                if existing is None:
                    raise
        return str(existing.experiment_id)

    @_raises_one_kind
    def open_run(self, name: str, tags: Mapping[str, str], *, known_by: str, run_id: str | None = None) -> str:
        """The id of the run of this name with this value of the tag `known_by`, which runs from now on.

        Args:
            name: of the run.
            tags: of a new run; `known_by` is one of them.
            known_by: tag.
            run_id: the run's id, if it is known; ignored if this store does not have it.
        """
        if run_id is None or not self._has_run(run_id):
            run_id, _ = self.find_run(name, tags, known_by=known_by)
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    @_raises_one_kind
    def find_run(self, name: str, tags: Mapping[str, str], *, known_by: str) -> tuple[str, Mapping[str, str]]:
        """The id and the tags of the run of this name with this value of the tag `known_by`.

        A run that the store does not have is created with `tags`.
        """
        runs = self._client.search_runs([self.experiment_id], f"tags.`{known_by}` = '{tags[known_by]}'")
        for run in runs:
            if run.data.tags.get(MLFLOW_RUN_NAME) == name:
                return str(run.info.run_id), run.data.tags
        return str(self._client.create_run(self.experiment_id, tags={**tags, MLFLOW_RUN_NAME: name}).info.run_id), tags

    def _has_run(self, run_id: str) -> bool:
        try:
            self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    @_raises_one_kind
    def set_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        """Set parameters; MLflow does not change one, so those that were set keep their value."""
        earlier_params = self._client.get_run(run_id).data.params
        entries = [Param(name, str(value)) for name, value in params.items() if name not in earlier_params]
        for start in range(0, len(entries), _MAX_PARAMS):
            self._client.log_batch(run_id, params=entries[start : start + _MAX_PARAMS])

    @_raises_one_kind
    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        self._client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    @_raises_one_kind
    def set_datasets(self, run_id: str, datasets: Mapping[str, str]) -> None:
        """Set the data sets of a run: context ("train", "benchmark math500") to "name@digest"."""
        inputs = []
        for context, described in datasets.items():
            name, _, digest = described.partition("@")
            # The context is part of the name, because MLflow treats one file in two contexts as the same input.
            title, source = f"{context}: {Path(name).name}", json.dumps({"uri": name})
            dataset = Dataset(name=title, digest=digest[:36], source_type="local", source=source)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
        for tries_left in reversed(range(_TRIES)):
            try:
                self._client.log_inputs(run_id, datasets=inputs)
                return
            except MlflowException:
                # MLflow checks and adds data sets non-atomically: another run may add it in between
                if not tries_left:
                    raise

    @_raises_one_kind
    def add_columns(
        self, *, params: Sequence[str] = (), tags: Sequence[str] = (), metrics: Sequence[str] = (), search: str = ""
    ) -> None:
        """Add columns to the view of MLflow's table of runs that VIEW_KEY names in its address.

        Args:
            params, tags, metrics: names.
            search: filter of the view, in MLflow's language.
        """
        tag = f"mlflow.sharedViewState.{VIEW_KEY}"
        try:
            before = json.loads(self._client.get_experiment(self.experiment_id).tags[tag])
            columns = list(before["selectedColumns"])
        except (KeyError, TypeError, ValueError):  # none yet, or changed by someone
            before, columns = {}, []
        kinds = {"params": params, "tags": tags, "metrics": metrics}
        columns += [f"{kind}.`{name}`" for kind, names in kinds.items() for name in names]
        view = {**({"searchFilter": search} if search else {}), "selectedColumns": list(dict.fromkeys(columns))}
        if view != before:
            self._client.set_experiment_tag(self.experiment_id, tag, json.dumps(view))

    @_raises_one_kind
    def history(self, run_id: str, name: str) -> Mapping[int, float]:
        """A metric's value by step; of several values at one step, the latest."""
        points = sorted(self._client.get_metric_history(run_id, name), key=lambda point: int(point.timestamp))
        return {point.step: point.value for point in points}

    @_raises_one_kind
    def add_points(self, run_id: str, points: Iterable[Point]) -> None:
        """Add values of metrics."""
        entries = [Metric(point.name, point.value, point.timestamp_ms, point.step) for point in points]
        for start in range(0, len(entries), MAX_POINTS):
            self._client.log_batch(run_id, metrics=entries[start : start + MAX_POINTS], synchronous=True)

    @_raises_one_kind
    def put_table(self, run_id: str, name: str, frame: pd.DataFrame) -> None:
        """Write a table as an artifact that MLflow shows as a table; replaces one of the same name."""
        # MlflowClient.log_table appends to an existing table, so a resumed run would have every row twice.
        value = json.loads(frame.to_json(orient="split", index=False))
        self._client.log_dict(run_id, {"columns": value["columns"], "data": value["data"]}, name)
        table_names = json.loads(self._client.get_run(run_id).data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in table_names:
            self._client.set_tag(run_id, _TABLES_TAG, json.dumps([*table_names, entry]))

    @_raises_one_kind
    def put_file(self, run_id: str, path: Path, folder: str | None = None) -> None:
        """Write a copy of a file as an artifact, in a folder of the run's artifacts."""
        self._client.log_artifact(run_id, str(path), folder)

    @_raises_one_kind
    def end_run(self, run_id: str, status: str) -> None:
        """Close a run with a status: "FINISHED", "FAILED" or "KILLED"."""
        self._client.set_terminated(run_id, status)
