"""MLflow: one run per experiment, one nested run per agent, every metric value logged once.

Only this file imports mlflow. A SQLite store is switched to WAL mode and migrated once, under a lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlparse

import pandas as pd
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from hacpo_core.config.addresses import VIEW_KEY, has_password, is_server, sqlite_path, without_password
from hacpo_core.errors import TrackingError, first_line
from hacpo_core.files import write_json

_log = logging.getLogger(__name__)
_MAX_PARAMS, _MAX_POINTS = 100, 1000  # per call
_TRIES = 5
_TABLES_TAG = "mlflow.loggedArtifacts"
STEP_METRIC = "progress/step"
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
    """Decorator of a tracker's method that converts the store's errors to TrackingError."""

    @wraps(method)
    def inner(self: Tracker, *args: Any, **kwargs: Any) -> Any:
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
    before, now = existing.artifact_location if existing is not None else "", artifacts.as_uri()
    if before in ("", now) or Path(unquote(urlparse(before).path)).is_dir():
        return
    _log.info("%s: artifacts moved from %s to %s", uri, before, now)
    with closing(sqlite3.connect(sqlite_path(uri) or "")) as connection, connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                (now, len(before) + 1, len(before), before),
            )


def _read_state(path: Path) -> dict[str, Any]:
    """The state of an earlier process: the training's id, which tags its runs, and the runs' ids."""
    if not path.is_file():
        return {}
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        _log.warning("%s is corrupt; opening new MLflow runs and leaving the existing ones as they are", path)
        return {}
    return state


def _status(client: MlflowClient, run_id: str) -> str | None:
    """Status of a run; None if this store does not have it."""
    try:
        return str(client.get_run(run_id).info.status)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


class Tracker:
    """Writes one experiment to MLflow; opening it again continues the same runs."""

    def __init__(
        self, uri: str, *, experiment: str, artifacts: Path, run_name: str, state_file: Path, agents: Sequence[str]
    ) -> None:
        """Open or create the runs.

        Args:
            uri: tracking URI.
            experiment: MLflow experiment, created if missing.
            artifacts: folder for artifacts of a new experiment; a tracking server uses its own.
            run_name: name and tag of the parent run.
            state_file: file in the experiment's folder that stores the run ids.
            agents: names; each gets a nested run.

        Raises:
            TrackingError: the store does not respond, cannot be opened or rejects data; all methods may raise it.
        """
        self._uri = uri
        with _in_one_sentence(uri, ImportError, ValueError):  # missing driver, invalid address
            self._open(uri, experiment, artifacts, run_name, state_file, agents)

    def _open(
        self, uri: str, experiment: str, artifacts: Path, run_name: str, state_file: Path, agents: Sequence[str]
    ) -> None:
        prepare_store(uri)
        self._client = MlflowClient(uri)
        place = None if is_server(uri) else artifacts.absolute().as_uri()
        if sqlite_path(uri) == artifacts.absolute().with_name("mlflow.db"):
            _follow_artifacts(uri, experiment, artifacts.absolute())
        self._experiment_id = self._find_experiment(experiment, place)
        known = _read_state(state_file)
        # Identifies this folder's training: the same experiment in another folder has other runs.
        training = known.get("training") or secrets.token_hex(8)
        self._state_file = state_file
        write_json(state_file, {**known, "training": training, "is_open": True})
        tags = {"hacpo.experiment": run_name, "hacpo.training": training}
        self._parent = self._open_run(known.get("run"), run_name, tags)
        self._agents = {
            name: self._open_run(
                known.get("agents", {}).get(name),
                f"{run_name}/{name}",
                {**tags, "hacpo.agent": name, MLFLOW_PARENT_RUN_ID: self._parent},
            )
            for name in agents
        }
        self._waiting: defaultdict[str, list[Metric]] = defaultdict(list)
        self._stored: dict[tuple[str, str], dict[int, float]] = {}
        self._state = {
            "training": training,
            "experiment": self._experiment_id,
            "run": self._parent,
            "agents": self._agents,
        }
        write_json(state_file, {**self._state, "is_open": True})

    @property
    def run_id(self) -> str:
        """MLflow id of the parent run."""
        return self._parent

    @property
    def experiment_id(self) -> str:
        """MLflow id of the experiment that holds the runs."""
        return self._experiment_id

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

    def _open_run(self, run_id: str | None, name: str, tags: dict[str, str]) -> str:
        if run_id is not None and _status(self._client, run_id) is None:
            run_id = None  # the experiment started with another store
        if run_id is None:
            runs = self._client.search_runs(
                [self._experiment_id], f"tags.`hacpo.training` = '{tags['hacpo.training']}'"
            )
            exact = [run for run in runs if run.data.tags.get(MLFLOW_RUN_NAME) == name]
            run_id = exact[0].info.run_id if exact else None
        if run_id is None:
            return str(self._client.create_run(self._experiment_id, tags={**tags, MLFLOW_RUN_NAME: name}).info.run_id)
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    @_raises_one_kind
    def log_setup(self, *, params: Mapping[str, Any], tags: Mapping[str, str], datasets: Mapping[str, str]) -> None:
        """Log parameters and data sets on the parent run, and tags on all runs.

        Args:
            params: name to value; a parameter that was already logged keeps its value.
            tags: name to value.
            datasets: context ("train", "benchmark math500") to "name@digest".
        """
        # MLflow does not allow changing a parameter. Those that identify the experiment cannot have changed; for the
        # others (paths, retries, checkpoints), the first run's value is kept.
        known = self._client.get_run(self._parent).data.params
        entries = [Param(name, str(value)) for name, value in params.items() if name not in known]
        for start in range(0, len(entries), _MAX_PARAMS):
            self._client.log_batch(self._parent, params=entries[start : start + _MAX_PARAMS])
        self.set_tags(tags)
        inputs = []
        for context, described in datasets.items():
            name, _, digest = described.partition("@")
            # The context is part of the name, because MLflow treats one file in two contexts as the same input.
            title, source = f"{context}: {Path(name).name}", json.dumps({"uri": name})
            dataset = Dataset(name=title, digest=digest[:36], source_type="local", source=source)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
        for tries_left in reversed(range(_TRIES)):
            try:
                self._client.log_inputs(self._parent, datasets=inputs)
                return
            except MlflowException:
                # MLflow checks and adds data sets non-atomically: another run may add it in between
                if not tries_left:
                    raise

    @_raises_one_kind
    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags on all runs."""
        for agent, run_id in (("", self._parent), *self._agents.items()):
            own = {**tags, "agent": agent} if agent else tags
            self._client.log_batch(run_id, tags=[RunTag(name, value) for name, value in own.items()])

    @_raises_one_kind
    def set_notes(self, *, tags: Sequence[str], note: str, is_archived: bool) -> None:
        """Replace what people noted on the parent run; MLflow shows the note as its description."""
        archived = str(is_archived).lower()
        values = {"hacpo.tags": ", ".join(tags), "hacpo.archived": archived, MLFLOW_RUN_NOTE: note}
        self._client.log_batch(self._parent, tags=[RunTag(name, value) for name, value in values.items()])

    @_raises_one_kind
    def set_health(self, text: str) -> None:
        """Replace the tag of the parent run that says what is wrong with the training."""
        self._client.set_tag(self._parent, "hacpo.health", text)

    @_raises_one_kind
    def choose_columns(self, *, params: Sequence[str], tags: Sequence[str], metrics: Sequence[str]) -> None:
        """Add columns to the view of MLflow's table of runs that VIEW_KEY names in its address."""
        tag = f"mlflow.sharedViewState.{VIEW_KEY}"
        try:
            before = list(json.loads(self._client.get_experiment(self._experiment_id).tags[tag])["selectedColumns"])
        except (KeyError, TypeError, ValueError):  # none yet, or changed by someone
            before = []
        kinds = {"params": params, "tags": tags, "metrics": metrics}
        columns = [f"{kind}.`{name}`" for kind, names in kinds.items() for name in names]
        chosen = list(dict.fromkeys([*before, *columns]))
        if chosen != before:
            self._client.set_experiment_tag(self._experiment_id, tag, json.dumps({"selectedColumns": chosen}))

    @_raises_one_kind
    def logged_steps(self) -> set[int]:
        """Steps whose metrics are completely logged."""
        return {point.step for point in self._client.get_metric_history(self._parent, STEP_METRIC)}

    @_raises_one_kind
    def stored(self, agent: str | None, name: str) -> Mapping[int, float]:
        """A metric of an agent's run (None: of the parent run) by step, as it was when it was first asked for.

        A phase that runs again gives its values another time, so that MLflow would store them a second time.
        """
        key = self._parent if agent is None else self._agents[agent], name
        if key not in self._stored:
            history = sorted(self._client.get_metric_history(*key), key=lambda point: int(point.timestamp))
            self._stored[key] = {point.step: point.value for point in history}
        return self._stored[key]

    @_raises_one_kind
    def add(self, agent: str | None, values: Mapping[str, float], *, step: int, timestamp_ms: int) -> None:
        """Add values at one step to those to be sent; the same values with the same time are stored once.

        Args:
            agent: name; None: the parent run. Add a step's values of the parent run last: its STEP_METRIC says that
                the step is complete.
            values: name to value.
            step: number of the step.
            timestamp_ms: a time that is the same each time that these values are sent.
        """
        run_id = self._parent if agent is None else self._agents[agent]
        if len(self._waiting[run_id]) + len(values) > _MAX_POINTS:
            self.flush()
        self._waiting[run_id] += [Metric(name, float(value), timestamp_ms, step) for name, value in values.items()]

    @_raises_one_kind
    def flush(self) -> None:
        """Send what was added, one call per run; the parent's last."""
        for run_id in (*self._agents.values(), self._parent):
            if self._waiting[run_id]:
                self._client.log_batch(run_id, metrics=self._waiting[run_id], synchronous=True)
        self._waiting.clear()

    @_raises_one_kind
    def log_table(self, name: str, frame: pd.DataFrame) -> None:
        """Log a table as an artifact of the parent run that MLflow shows as a table; replaces one of the same name."""
        # MlflowClient.log_table appends to an existing table, so a resumed run would have every row twice.
        value = json.loads(frame.to_json(orient="split", index=False))
        self._client.log_dict(self._parent, {"columns": value["columns"], "data": value["data"]}, name)
        listed = json.loads(self._client.get_run(self._parent).data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in listed:
            self._client.set_tag(self._parent, _TABLES_TAG, json.dumps([*listed, entry]))

    @_raises_one_kind
    def log_file(self, path: Path) -> None:
        """Log a file as an artifact of the parent run."""
        self._client.log_artifact(self._parent, str(path))

    @_raises_one_kind
    def finish(self, status: str) -> None:
        """Send what was added and close all runs with a status: "FINISHED", "FAILED" or "KILLED"."""
        self.flush()
        for run_id in (*self._agents.values(), self._parent):
            self._client.set_terminated(run_id, status)
        write_json(self._state_file, {**self._state, "is_open": False})
