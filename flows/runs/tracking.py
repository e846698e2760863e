"""Writes to MLflow what a runs folder holds: `sync`, and for a run in training a thread after each step and at the end.

The folder is the record: steps and evaluations are committed there with a fixed time, so they can be sent at any time,
any number of times. If the store is away, training goes on, and the next call sends what is missing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planning.plans import Plan, find_plan
from flows.records.files import experiments_dir
from flows.records.gridfile import GridRecord
from flows.records.mlflow_address import STATE_FILE, mark_unsent, read_state, tracking_uri
from flows.runs.mlflow_contents import MEAN, SYMBOLS, experiment_content, grid_contents
from hacpo_core.errors import HacpoError, TrackingError, first_line
from hacpo_core.files import write_json
from hacpo_core.store.lock import is_locked
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # importing MLflow takes over a second, so the thread does it
    from flows.runs.mlflow_store import MlflowStore

_log = logging.getLogger(__name__)
SEND_EVERY_S, RETRY_EVERY_S = 2.0, 30.0
"""time between two calls, because a call itself is expensive; and after one that failed"""
FINISH_LIMIT_S = 60.0
"""longest time that the end of an experiment waits for the store"""


def plan_tracking_uri(plan: Plan) -> str | None:
    """Address of the MLflow store, None if tracking is off. Call it before models are loaded, to fail early.

    Raises:
        ConfigError: the address contains a password, which error messages would show.
    """
    config = plan.config
    return tracking_uri(config.tracking.uri, Path(config.runtime.runs_dir)) if config.tracking.enabled else None


def _open_store(uri: str, experiment: str) -> MlflowStore:
    from flows.runs.mlflow_store import MlflowStore

    return MlflowStore(uri, experiment=experiment)


def _sync_experiment(plan: Plan, store: MlflowStore, *, status: str | None = None, first_step: int = 0) -> None:
    """Bring MLflow's run of an experiment to what its folder holds; arguments as of `experiment_content`."""
    key = mark_unsent(plan.root)
    accuracies = [f"metrics.`evaluate/{benchmark}_accuracy`" for benchmark in plan.config.evaluate.final]
    columns = ["tags.`pair`", "params.`method`", "params.`seed`", *accuracies]
    ids = store.write(key, experiment_content(plan, status, first_step), columns)
    write_json(plan.root / STATE_FILE, {"key": key, **ids, "is_sent": status != "RUNNING"})


class Tracking:
    """Sends an experiment to MLflow from a thread; does nothing if tracking is off. No error of the store is raised."""

    def __init__(self, plan: Plan) -> None:
        """Start to send; a run that an earlier process left open is continued."""
        self._plan, self._uri = plan, plan_tracking_uri(plan)
        self._store: MlflowStore | None = None
        self._first_step, self._next_at, self._error = 0, 0.0, ""
        self._thread = threading.Thread()
        if self._uri is not None:
            mark_unsent(plan.root)
        self.send_soon()

    def send_soon(self) -> None:
        """Send what was committed, or leave it to a later call if the last one was just before; returns at once."""
        if not self._thread.is_alive() and time.monotonic() >= self._next_at:
            self._start("RUNNING")

    def finish(self, status: str) -> None:
        """Send everything and close the run with this status, or say what could not be sent; the last call counts."""
        self._start(status)
        if self._uri is not None:
            self._thread.join(FINISH_LIMIT_S)
            if self._thread.is_alive():
                self._warn(f"no answer within {FINISH_LIMIT_S:.0f} s")

    def _start(self, status: str) -> None:
        if self._uri is not None:
            earlier = self._thread if self._thread.is_alive() else None
            self._thread = threading.Thread(target=self._send, args=(self._uri, status, earlier), daemon=True)
            self._thread.start()

    def _warn(self, error: str) -> None:
        if error and error != self._error:
            _log.warning("%s: not all was sent to MLflow (%s); `hacpo sync` sends it later", self._plan.id, error)
        self._error = error

    def _send(self, uri: str, status: str, earlier: threading.Thread | None) -> None:
        """Send what is new, after an earlier thread."""
        if earlier is not None:
            earlier.join()
        error = ""
        try:
            self._store = self._store or _open_store(uri, self._plan.config.tracking.experiment)
            last_step = StepStore(self._plan.root).last_step()
            _sync_experiment(self._plan, self._store, status=status, first_step=self._first_step)
            self._first_step = last_step
        except Exception as problem:  # noqa: BLE001  no error of the store may end a training
            self._store = None
            error = first_line(problem) if isinstance(problem, HacpoError) else f"{type(problem).__name__}: {problem}"
        self._warn(error)
        self._next_at = time.monotonic() + (RETRY_EVERY_S if error else SEND_EVERY_S)


def sync(
    runs_dir: Path,
    names: Iterable[str],
    grids: Iterable[GridRecord] = (),
    verdicts: Sequence[str] = (),
    plans: Mapping[str, Plan] | None = None,
) -> list[str]:
    """Bring MLflow to what a runs folder holds of some experiments and grids; experiments in training send themselves.

    Args:
        runs_dir: folder of all runs.
        names: ids of experiments.
        grids: their complete rows become runs of an MLflow experiment of their own.
        verdicts: the sentences of a grid's report, which become a tag of its rows.
        plans: by id, those that the caller has; others are read.

    Returns:
        ids of the experiments that were sent. What cannot be sent is a warning, one if the store is away.
    """
    sent_ids, store_of = [], cache(_open_store)
    plan_of = cache(lambda name: (plans or {}).get(name) or find_plan(runs_dir, name))
    sends: dict[str, Callable[[], bool | None]] = {
        name: partial(_sync_lacking, runs_dir, name, plan_of, store_of) for name in names
    }
    sends |= {f"grid {grid.name}": partial(_sync_grid, runs_dir, grid, plan_of, store_of, verdicts) for grid in grids}
    for name, send in sends.items():
        try:
            sent_ids += [name] if send() else []
        except HacpoError as error:  # for example an experiment of another version of hacpo
            _log.warning("%s: not sent to MLflow: %s; `hacpo sync` sends it later", name, first_line(error))
            if isinstance(error, TrackingError):
                break
    return sent_ids


def _sync_lacking(
    runs_dir: Path, name: str, plan_of: Callable[[str], Plan], store_of: Callable[[str, str], MlflowStore]
) -> bool:
    """Send an experiment if MLflow lacks something of it."""
    root = experiments_dir(runs_dir) / name
    if is_locked(root) or not ((root / STATE_FILE).is_file() or (root / "steps").is_dir()):
        return False
    plan, state = plan_of(name), read_state(root)
    if (uri := plan_tracking_uri(plan)) is None:
        return False
    store = store_of(uri, plan.config.tracking.experiment)
    is_lacking = not state.get("is_sent") or not store.holds(str(state.get("key")))
    if is_lacking:
        _sync_experiment(plan, store)
    return is_lacking


def _sync_grid(
    runs_dir: Path,
    grid: GridRecord,
    plan_of: Callable[[str], Plan],
    store_of: Callable[[str, str], MlflowStore],
    verdicts: Sequence[str],
) -> None:
    metrics = (*(f"{MEAN}/{name}" for name in grid.benchmarks), "tokens_sampled", "hours")
    columns = [f"params.`{name}`" for name in ("pair", "method", "seed", *SYMBOLS)]
    columns += [f"metrics.`{name}`" for name in metrics]
    for key, plan, content in grid_contents(grid, runs_dir, plan_of, verdicts):
        if (uri := plan_tracking_uri(plan)) is not None:
            ids = store_of(uri, f"{plan.config.tracking.experiment}-results").write(key, content, columns)
            write_json(runs_dir / STATE_FILE, {"experiment": ids["experiment"]})
