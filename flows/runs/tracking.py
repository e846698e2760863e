"""Writes to MLflow what a runs folder holds: `sync_experiment`, after each step in a thread, at the end, and later.

The folder is the record: steps and evaluations are committed there with a fixed time, so they can be sent at any time,
any number of times. If the store is away, training goes on, and the next call sends what is missing.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.planning.plans import Plan, find_plan
from flows.records.files import experiment_ids, experiments_dir
from flows.records.gridfile import read_grids
from flows.records.mlflow_address import STATE_FILE, mark_unsent, read_state, tracking_uri
from flows.records.progress import read_progress
from flows.records.states import experiment_status
from flows.records.versions import version_tags
from flows.runs.results import result_values
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.fields import fields_of
from hacpo_core.errors import HacpoError, TrackingError, first_line
from hacpo_core.evaluation.best import best_texts
from hacpo_core.evaluation.results import read_result
from hacpo_core.files import write_json
from hacpo_core.store.lock import is_locked
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # importing MLflow takes over a second, so the thread does it
    from flows.records.mlflow_store import Batch, MlflowStore

_log = logging.getLogger(__name__)
SEND_EVERY_S, RETRY_EVERY_S = 2.0, 30.0
"""time between two calls, because a call itself is expensive; and after one that failed"""
FINISH_LIMIT_S = 60.0
"""longest time that the end of an experiment waits for the store"""
_STATUSES = {"done": "FINISHED", "failed": "FAILED", "running": "RUNNING", "missing": "KILLED"}
"""MLflow's, by the state of the experiment"""
_SYMBOLS = {
    "α": "method.objective.cross_exponent",
    "floor": "method.objective.cross_floor",
    "δ_step": "method.objective.cross_step",
    "K": "method.estimate.window",
}
"""the paper's symbols for fields of some methods; the floor is 1 - δ"""
SYMBOLS = ("α", "δ", "floor", "δ_step", "K")
"""the symbols, as parameters of those runs in which their fields act"""
_NAMES = ("pair.name", "method.name")
_FORBIDDEN = re.compile(r"[^/\w.\- :]")
"""characters that a key in MLflow may not have"""


def plan_tracking_uri(plan: Plan) -> str | None:
    """Address of the MLflow store, None if tracking is off. Call it before models are loaded, to fail early.

    Raises:
        ConfigError: the address contains a password, which error messages would show.
    """
    config = plan.config
    return tracking_uri(config.tracking.uri, Path(config.runtime.runs_dir)) if config.tracking.enabled else None


def open_store(config: ExperimentConfig, uri: str, *, results: bool = False) -> MlflowStore:
    """MLflow's experiment that holds a configuration's trainings, or the results of its grids.

    Raises:
        TrackingError: the store is away, or cannot be used.
    """
    from flows.records.mlflow_store import MlflowStore

    name = f"{config.tracking.experiment}-results" if results else config.tracking.experiment
    return MlflowStore(uri, experiment=name)


def sync_experiment(plan: Plan, store: MlflowStore, *, status: str | None = None, first_step: int = 0) -> None:
    """Bring MLflow's runs of an experiment, one and a nested one for each agent, to what its folder holds.

    Args:
        plan: of the experiment.
        store: from `open_store`.
        status: "RUNNING", "FINISHED", "FAILED" or "KILLED"; None: by the state of the folder.
        first_step: metrics of earlier steps are in MLflow already.

    Raises:
        TrackingError: the store does not take it; the next call sends what is missing.
    """
    from flows.records.mlflow_store import RunContent

    config, state = plan.config, read_state(plan.root)
    # Identifies this folder's training: the same experiment in another folder has other runs.
    key = state.get("key") or secrets.token_hex(8)
    status = status or _STATUSES[experiment_status(plan.root).state]
    ids = {"key": key, "experiment": store.experiment_id}
    write_json(plan.root / STATE_FILE, {**state, **ids, "is_sent": False})
    if first_step == 0:
        accuracies = [f"evaluate/{benchmark}_accuracy" for benchmark in config.evaluate.final]
        store.add_columns(params=("method", "seed"), tags=("pair",), metrics=accuracies)
    params, tags = parameters(config), {"hacpo.experiment": plan.id, **_tags(plan)}
    batches = _batches(plan, first_step)
    runs = [RunContent(plan.id, status, tags | _findings(plan), params, batches[""])]
    for agent in config.pair.agents:
        names = {"agent": agent, "hacpo.agent": agent}
        runs.append(RunContent(f"{plan.id}/{agent}", status, tags | names, params, batches[agent]))
    ids["run"] = store.write(key, runs)[plan.id]
    write_json(plan.root / STATE_FILE, {**ids, "is_sent": status != "RUNNING"})


def _batches(plan: Plan, first_step: int) -> dict[str, list[Batch]]:
    """Metrics from a step on, and all evaluations, since damaged ones are made again at the end; by agent.

    "" stands for the figures of all agents, with their mean accuracies.
    """
    from flows.records.mlflow_store import Batch

    store, agents = StepStore(plan.root), list(plan.config.pair.agents)
    batches: defaultdict[str, list[Batch]] = defaultdict(list)
    for step in range(store.last_step() + 1):
        if step and step >= first_step and store.is_intact(step, "metrics"):
            metrics = store.metrics(step)
            for name, values in {**metrics["agents"], "": metrics["run"]}.items():
                batches[name].append(Batch(step, int(metrics["timestamp_ms"]), values))
        values_by_benchmark: defaultdict[str, list[float]] = defaultdict(list)
        for phase in store.committed(step):
            if phase.startswith("evaluate.") and store.is_intact(step, phase):
                result, time_ms = read_result(store, step, phase), store.committed_at_ms(step, phase)
                batches[result.agent].append(Batch(step, time_ms, result_values(result)))
                values = values_by_benchmark[result.benchmark]
                values.append(result.value)
                if len(values) == len(agents):
                    mean = {f"evaluate/{result.benchmark}_accuracy": sum(values) / len(values)}
                    batches[""].append(Batch(step, time_ms, mean))
    return batches


def membership(kind: str, name: str) -> str:
    """Tag of what belongs to a grid or pair; its value is "true"."""
    return f"{kind}.{_FORBIDDEN.sub('-', name)}"


def parameters(config: ExperimentConfig) -> dict[str, Any]:
    """Method, models and seed, the paper's symbols for fields that act, and what differs from the schema's defaults.

    Of the latter only fields that can change results, and no names. Grids and pairs can change, which a parameter
    cannot: they are tags.
    """
    acting = {field.name: field for field in fields_of(config) if field.inert is None}
    symbols = {symbol: acting[name].value for symbol, name in _SYMBOLS.items() if name in acting}
    if "floor" in symbols:
        symbols["δ"] = round(1.0 - symbols["floor"], 12)
    names = {"method": config.method.name, "model_pair": " + ".join(config.pair.agents), "seed": config.seed}
    changed_fields = {name: field.value for name, field in acting.items() if field.is_identity and not field.is_default}
    return {**names, **symbols, **{name: value for name, value in changed_fields.items() if name not in _NAMES}}


def _tags(plan: Plan) -> dict[str, str]:
    """Pair, method and seed, a tag for each grid and pair that the experiment belongs to, and versions.

    A grid's training of one agent belongs to the grid's pairs, not to one of its own.
    """
    config = plan.config
    grids = read_grids(Path(config.runtime.runs_dir))
    cells = [(grid.name, cell) for grid in grids for cell in grid.cells if cell.experiment == plan.id]
    pairs = sorted({cell.pair for _, cell in cells}) or [config.pair.name]
    members = [membership("pair", pair) for pair in pairs] + [membership("grid", grid) for grid, _ in cells]
    agent = {"agent": next(iter(config.pair.agents))} if len(config.pair.agents) == 1 else {}
    names = {"pair": ", ".join(pairs), "method": config.method.name, "seed": str(config.seed)}
    return {**names, **dict.fromkeys(members, "true"), **agent, **version_tags()}


def _findings(plan: Plan) -> dict[str, str]:
    """What is wrong with the training, and the steps with the best accuracies."""
    progress, best = read_progress(plan.root), best_texts(plan.root, plan.config)
    tags = {"hacpo.best": "; ".join(f"step {step}: {text}" for step, text in sorted(best.items()))} if best else {}
    if progress is not None:
        findings = [f"{finding.rule} ({finding.agent})" for finding in progress.open_findings]
        tags["hacpo.health"] = "; ".join(findings) or "no finding"
    return tags


class Tracking:
    """Sends an experiment to MLflow from a thread; does nothing if tracking is off. No error of the store is raised."""

    def __init__(self, plan: Plan) -> None:
        """Start to send; runs that an earlier process left open are continued."""
        self._plan, self._uri = plan, plan_tracking_uri(plan)
        self._store: MlflowStore | None = None
        self._first_step = 0
        self._has_news, self._has_ended = threading.Event(), threading.Event()
        self._status, self._error = "RUNNING", ""
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        if self._uri is not None:
            mark_unsent(plan.root)
            self._has_news.set()
            self._thread.start()

    def send_soon(self) -> None:
        """Have what was committed sent; returns at once."""
        self._has_news.set()

    def finish(self, status: str) -> None:
        """Send everything and close the runs with this status, or say what could not be sent; the last call counts."""
        if self._uri is None:
            return
        self._status = status
        if self._has_ended.is_set() and not self._thread.is_alive():
            self._warn(self._send())
            return
        self._has_ended.set()
        self._has_news.set()
        self._thread.join(FINISH_LIMIT_S)
        if self._thread.is_alive():
            self._warn(f"no answer within {FINISH_LIMIT_S:.0f} s")

    def _warn(self, error: str) -> None:
        if error and error != self._error:
            _log.warning("%s: not all was sent to MLflow (%s); `hacpo sync` sends it later", self._plan.id, error)
        self._error = error

    def _run(self) -> None:
        has_ended = False
        while not has_ended:
            self._has_news.wait()
            self._has_news.clear()
            has_ended = self._has_ended.is_set()
            self._warn(self._send())
            if self._error:
                self._has_news.set()
            self._has_ended.wait(RETRY_EVERY_S if self._error else SEND_EVERY_S)

    def _send(self) -> str:
        """Send what is new. Returns why that failed, else an empty text."""
        assert self._uri is not None, "the thread runs only if tracking is on"
        try:
            self._store = self._store or open_store(self._plan.config, self._uri)
            last_step = StepStore(self._plan.root).last_step()
            sync_experiment(self._plan, self._store, status=self._status, first_step=self._first_step)
            self._first_step = last_step
            return ""
        except Exception as error:  # noqa: BLE001  no error of the store may end a training
            self._store = None
            return first_line(error) if isinstance(error, HacpoError) else f"{type(error).__name__}: {error}"


def sync_experiments(runs_dir: Path, names: Sequence[str] = ()) -> list[str]:
    """Send to MLflow what it lacks of some experiments, or of all of a runs folder; those that train send themselves.

    Returns:
        ids of the experiments that were sent. What cannot be sent is a warning, once for a store that is away.
    """
    sent_ids = []
    stores: dict[tuple[str, str], MlflowStore | None] = {}
    for name in names or experiment_ids(runs_dir):
        root = experiments_dir(runs_dir) / name
        if is_locked(root) or not ((root / STATE_FILE).is_file() or (root / "steps").is_dir()):
            continue
        try:
            plan = find_plan(runs_dir, name)
            uri = plan_tracking_uri(plan)
            if uri is None:
                continue
            address = uri, plan.config.tracking.experiment
            if address not in stores:
                stores[address] = None  # each call to a silent store takes a while
                stores[address] = open_store(plan.config, uri)
            store = stores[address]
            state, num_runs = read_state(root), 1 + len(plan.config.pair.agents)
            if store is None or (state.get("is_sent") and store.holds(str(state.get("key")), num_runs)):
                continue
            sync_experiment(plan, store)
            sent_ids.append(name)
        except HacpoError as error:  # for example an experiment of another version of hacpo
            if isinstance(error, TrackingError):
                stores[address] = None
            _log.warning("%s: not sent to MLflow: %s", name, first_line(error))
    return sent_ids
