"""MLflow's store: brings runs to a given content. Only this file imports mlflow.

A SQLite store is switched to WAL mode and migrated once, under a lock.
"""

import fcntl
import json
import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from mlflow.entities import Experiment, Metric, Param, Run, RunTag, ViewType
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from sqlalchemy.exc import SQLAlchemyError

from flows.records.mlflow_address import VIEW_KEY, sqlite_path, sqlite_uri
from flows.runs.mlflow_contents import RunContent
from hacpo_core.config.addresses import has_password, without_password
from hacpo_core.errors import TrackingError, first_line

_log = logging.getLogger(__name__)
_MAX_PARAMS, _MAX_VALUES = 100, 1000  # per call
_KEY = "hacpo.key"
"""tag that identifies a run"""
NUM_RETRIES = 3
"""retries of a request to a server, after 2, 4 and 8 s"""


@contextmanager
def _in_one_sentence(uri: str) -> Iterator[None]:
    """Convert errors of MLflow, its database, a missing driver and an invalid address to a TrackingError."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError, ValueError) as error:
        message = without_password(f"{uri}: {first_line(error)}").rstrip(".")
        raise TrackingError(
            f"MLflow's store {message}; fix it or set another (tracking.uri or MLFLOW_TRACKING_URI); committed phases "
            "are kept"
        ) from (None if has_password(uri) else error)


def _configure_clients() -> None:
    """Limit what MLflow logs, and the time that it waits.

    A server that does not respond is given up after about 15 s, by default after four minutes. What was not sent is
    sent later. A limit that the user has set is kept.
    """
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it tells every retry
    # MLflow raises the errors that it logs here
    logging.getLogger("mlflow.store.db.utils").addFilter(lambda record: record.levelno < logging.ERROR)
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_MAX_RETRIES.name, str(NUM_RETRIES))
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")  # PostgreSQL's client waits for ever


def prepare_store(uri: str) -> None:
    """Migrate a SQLite store and switch it to WAL mode, one process at a time; check that another store responds.

    A new store is created under a temporary name: if the process is killed halfway, MLflow could not repair it.
    """
    _configure_clients()
    path = sqlite_path(uri)
    if path is None:
        MlflowClient(uri).search_experiments(max_results=1)
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


class MlflowStore:
    """One MLflow experiment; what was deleted of it on MLflow's page is restored, with a warning.

    Every method raises TrackingError if the store does not respond or rejects data; open it anew after that.
    """

    def __init__(self, uri: str, *, experiment: str) -> None:
        """Connect to the store with this URI; the experiment of this name is made if there is none."""
        self._uri, self._name = uri, experiment
        with _in_one_sentence(uri):
            prepare_store(uri)
            self._client = MlflowClient(uri)
            self._experiment()

    def _experiment(self) -> Experiment:
        experiment = self._client.get_experiment_by_name(self._name)
        if experiment is None:
            experiment = self._client.get_experiment(self._client.create_experiment(self._name))
        if experiment.lifecycle_stage == "deleted":
            self._client.restore_experiment(experiment.experiment_id)
            _log.warning("MLflow's experiment %s was deleted on its page; it is restored", self._name)
        return experiment

    def _run(self, experiment: Experiment, key: str, kind: int = ViewType.ACTIVE_ONLY) -> Run | None:
        runs = self._client.search_runs([experiment.experiment_id], f"tags.`{_KEY}` = '{key}'", kind)
        return runs[0] if runs else None

    def holds(self, key: str) -> bool:
        """Whether MLflow has the run of a key, and it is not deleted."""
        with _in_one_sentence(self._uri):
            return self._run(self._experiment(), key) is not None

    def write(self, key: str, content: RunContent, columns: Sequence[str]) -> dict[str, str]:
        """Bring the run of a key to its content.

        Args:
            key: of this folder's training, or of a row of a grid.
            content: what the run should hold.
            columns: to add to MLflow's table of runs.

        Returns:
            ids of MLflow's "experiment" and "run".
        """
        with _in_one_sentence(self._uri):
            experiment = self._experiment()
            self._add_columns(experiment, columns)
            run = self._run(experiment, key, ViewType.ALL)
            if run is None:
                begun_ms = min((batch.timestamp_ms for batch in content.batches), default=None)
                tags = {_KEY: key, MLFLOW_RUN_NAME: content.name}
                run = self._client.create_run(experiment.experiment_id, begun_ms, tags)
            self._write(run, content)
        return {"experiment": experiment.experiment_id, "run": run.info.run_id}

    def _write(self, run: Run, content: RunContent) -> None:
        """Send what the run lacks."""
        run_id = run.info.run_id
        if run.info.lifecycle_stage == "deleted":
            self._client.restore_run(run_id)
            _log.warning("run %s was deleted on MLflow's page; it is restored", content.name)
        params = [Param(name, str(value)) for name, value in content.params.items() if name not in run.data.params]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MAX_PARAMS])
        tags = [RunTag(name, value) for name, value in content.tags.items() if run.data.tags.get(name) != value]
        if tags:
            self._client.log_batch(run_id, tags=tags)
        metrics: list[Metric] = []
        values_by_name: dict[str, dict[int, float]] = {}
        for batch in content.batches:
            first, first_value = next(iter(batch.values.items()))
            if first not in values_by_name:
                points = self._client.get_metric_history(run_id, first)
                values_by_name[first] = {p.step: p.value for p in sorted(points, key=lambda p: int(p.timestamp))}
            if values_by_name[first].get(batch.step) != first_value:
                metrics += [Metric(name, float(v), batch.timestamp_ms, batch.step) for name, v in batch.values.items()]
        for start in range(0, len(metrics), _MAX_VALUES):
            self._client.log_batch(run_id, metrics=metrics[start : start + _MAX_VALUES])
        if content.status == "RUNNING" != run.info.status:
            self._client.update_run(run_id, status="RUNNING")
        elif content.status != run.info.status:
            ended_ms = max((batch.timestamp_ms for batch in content.batches), default=None)
            self._client.set_terminated(run_id, content.status, ended_ms)

    def _add_columns(self, experiment: Experiment, columns: Sequence[str]) -> None:
        """Add columns to the view that VIEW_KEY names in its address; a metric's is as wide as its name."""
        tag = f"mlflow.sharedViewState.{VIEW_KEY}"
        before = json.loads(experiment.tags.get(tag, "{}")).get("selectedColumns", [])
        selected = list(dict.fromkeys([*before, "attributes.`Duration`", *columns]))
        if selected != before:
            order = [name for name in selected if not name.startswith("attributes.")]
            widths = {name: 60 + 7 * len(name) for name in order if name.startswith("metrics.")}  # pixels
            view = {"selectedColumns": selected, "columnOrder": order, "columnWidths": widths}
            self._client.set_experiment_tag(experiment.experiment_id, tag, json.dumps(view))
