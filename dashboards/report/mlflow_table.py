"""A grid in MLflow: a run for each pair, method and seed, with metrics of the same names for every method.

A method that trains agents alone has an experiment for each of them; here they are one row, beside the row of a method
that trains them together. So MLflow's own table, charts and comparison put methods side by side. The grid has a run,
too, with its report. All are in an MLflow experiment of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dashboards.report.cells import Results, Run
from flows.records.mlflow_address import STATE_FILE, tracking_uri
from flows.runs.mlflow_labels import SYMBOLS, membership, parameters
from hacpo_core.config.schema import digest_of
from hacpo_core.errors import TrackingError
from hacpo_core.evaluation.metrics import BITS_PER_BYTE
from hacpo_core.files import write_json
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # importing MLflow takes over a second
    from flows.records.mlflow_store import MlflowStore, Point

_log = logging.getLogger(__name__)
_KEY, _KIND = "hacpo.key", "hacpo.kind"
_POINTS = "hacpo.points"
"""tag with the digest of all values of a row, set once they have been sent"""
MEAN = "mean"
"""first part of the names of metrics that are means over a pair's agents"""
_COSTS = (
    ("tokens_sampled", "tokens_sampled", 1),
    ("tokens_trained", "tokens_trained", 1),
    ("hours", "seconds", 3600),
    ("gpu_hours", "gpu_seconds", 3600),
)
"""metrics of what a training cost, columns of the result table, and their units"""


@dataclass(frozen=True, slots=True)
class _Row:
    """The runs of all agents of a pair with one method and seed."""

    runs: Sequence[Run]

    @property
    def name(self) -> str:
        cell = self.runs[0].cell
        return " ".join(filter(None, (cell.pair, cell.method, cell.label, f"seed {cell.seed}")))

    @property
    def key(self) -> str:
        """Differs between rows with different settings, since they have different experiments."""
        return digest_of([self.name, *(run.cell.experiment for run in self.runs)])

    @property
    def params(self) -> dict[str, Any]:
        """Parameters on which its experiments agree, and those of single agents; method and models are the grid's."""
        configs = [parameters(run.plan.config) for run in self.runs]
        values = {name: value for config in configs for name, value in config.items()}
        common = {name: value for name, value in values.items() if all(c.get(name, value) == value for c in configs)}
        cell = self.runs[0].cell
        names = {"pair": cell.pair, "method": cell.method, "label": cell.label, "seed": cell.seed}
        models = {"model_pair": " + ".join(run.cell.agent for run in self.runs)}
        return common | {name: value for name, value in names.items() if value != ""} | models


def send_grid(results: Results, report: Path) -> None:
    """Write a grid's complete rows and its report to MLflow; a store that does not take them is a warning.

    What MLflow has already is not sent again, but for the report. Nothing is sent of a grid without a complete row.

    Args:
        results: of the grid.
        report: its HTML page, with the figures beside it.
    """
    plans = list(results.grid.plans.values())
    tracking = plans[0].config.tracking
    if not tracking.enabled or not results.runs:
        return
    from flows.records.mlflow_store import MlflowStore

    runs_dir = Path(plans[0].config.runtime.runs_dir)
    try:
        store = MlflowStore(
            tracking_uri(tracking.uri, runs_dir),
            experiment=f"{tracking.experiment}-results",
            artifacts=runs_dir / "mlartifacts",
        )
        write_json(runs_dir / STATE_FILE, {"experiment": store.experiment_id})
        metrics = [f"{MEAN}/{name}" for name in results.benchmarks]
        store.add_columns(
            params=("method", *SYMBOLS),  # name and seed are in the run's name
            metrics=(*metrics, "tokens_sampled", "hours"),
            search=f"tags.`{_KIND}` = 'row'",
        )
        for row in _rows(results):
            _send_row(store, row, results.grid.name)
        _send_report(store, results, report)
    except TrackingError as error:
        _log.warning("grid %s: %s; `hacpo report %s` sends it later", results.grid.name, error, results.grid.name)


def _rows(results: Results) -> Iterator[_Row]:
    """The rows whose agents' cells are all complete, in grid order."""
    cells: dict[tuple[str, str, str, int], list[str]] = {}
    for cell in results.grid.cells:
        cells.setdefault((cell.pair, cell.method, cell.label, cell.seed), []).append(cell.agent)
    runs = {
        (run.cell.pair, run.cell.method, run.cell.label, run.cell.seed, run.cell.agent): run for run in results.runs
    }
    for place, agents in cells.items():
        complete_runs = [runs[(*place, agent)] for agent in agents if (*place, agent) in runs]
        if len(complete_runs) == len(agents):
            yield _Row(complete_runs)


def _send_row(store: MlflowStore, row: _Row, grid: str) -> None:
    tags = {
        _KIND: "row",
        _KEY: row.key,
        membership("grid", grid): "true",
        membership("pair", row.runs[0].cell.pair): "true",
        "hacpo.experiments": " ".join(dict.fromkeys(run.cell.experiment for run in row.runs)),
    }
    points = list(_points(row))
    digest = digest_of([astuple(point) for point in points])
    run_id, tags_before = store.find_run(row.name, tags, known_by=_KEY)
    if tags_before.get(_POINTS) != digest:  # new, sent in part, or evaluated on more benchmarks since
        store.set_params(run_id, row.params)
        store.add_points(run_id, points)
        store.end_run(run_id, "FINISHED")
    store.set_tags(run_id, tags | {_POINTS: digest})


def _points(row: _Row) -> Iterator[Point]:
    """Each agent's accuracy, bits per byte and reward by step, their means over the agents, and what training cost."""
    from flows.records.mlflow_store import Point

    last = {run.plan.root: run.last for run in row.runs}
    ended_ms = max(int(StepStore(root).metrics(step)["timestamp_ms"]) for root, step in last.items())
    by_agent: dict[tuple[str, int], list[float]] = {}
    final: dict[str, list[tuple[int, float]]] = {}
    for run in row.runs:
        rewards = run.curves[run.curves.metric == "reward/mean"]
        values_by_step = {
            ("reward", int(step)): float(value) for step, value in zip(rewards.step, rewards.value, strict=True)
        }
        values_by_step |= {(result.benchmark, result.step): result.value for result in run.evaluations}
        values_by_step |= {
            (f"{result.benchmark}_{BITS_PER_BYTE}", result.step): bits.value
            for result in run.evaluations
            if (bits := result.bits_per_byte) is not None
        }
        last_of: dict[str, tuple[int, float]] = {}
        for (name, step), value in sorted(values_by_step.items()):
            yield Point(f"{run.cell.agent}/{name}", value, step, ended_ms)
            by_agent.setdefault((name, step), []).append(value)
            last_of[name] = step, value
        for name, end in last_of.items():
            final.setdefault(name, []).append(end)
    for (name, step), values in by_agent.items():
        if len(values) == len(row.runs):
            yield Point(f"{MEAN}/{name}", sum(values) / len(values), step, ended_ms)
    for name, ends in final.items():  # agents that train alone may end after different steps
        if len(ends) == len(row.runs) and len({step for step, _ in ends}) > 1:
            yield Point(f"{MEAN}/{name}", sum(value for _, value in ends) / len(ends), max(ends)[0], ended_ms)
    for name, column, unit in _COSTS:
        yield Point(name, sum(run.row[column] for run in row.runs) / unit, max(last.values()), ended_ms)


def _send_report(store: MlflowStore, results: Results, report: Path) -> None:
    """The grid's run: its report with the figures, and its rows as a table."""
    grid = results.grid.name
    tags = {_KIND: "grid", _KEY: digest_of(["grid", grid]), membership("grid", grid): "true"}
    run_id, _ = store.find_run(f"grid {grid}", tags, known_by=_KEY)
    for path in (report, report.with_suffix(".md")):
        store.put_file(run_id, path)
    for path in sorted((report.parent / "figures").glob("*.svg")):
        store.put_file(run_id, path, "figures")
    store.put_table(run_id, "results.json", pd.DataFrame([run.row for run in results.runs]))
    store.end_run(run_id, "FINISHED")
