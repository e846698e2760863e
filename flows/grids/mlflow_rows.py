"""A grid in MLflow: a run for each pair, method and seed, with metrics of the same names for every method.

A method that trains agents alone has an experiment for each of them; here they are one row, beside the row of a method
that trains them together. So MLflow's own table, charts and comparison put methods side by side, in an MLflow
experiment of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.planning.plans import Plan, find_plan
from flows.records.files import experiments_dir
from flows.records.gridfile import GridCell, GridRecord
from flows.records.mlflow_address import STATE_FILE
from flows.records.states import RESULT_FILE
from flows.runs.results import read_final
from flows.runs.tracking import SYMBOLS, membership, open_store, parameters, plan_tracking_uri
from hacpo_core.config.schema import digest_of
from hacpo_core.errors import HacpoError, first_line
from hacpo_core.evaluation.results import results
from hacpo_core.evaluation.stopping import last_step
from hacpo_core.files import write_json
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # importing MLflow takes over a second
    from flows.records.mlflow_store import Batch

_log = logging.getLogger(__name__)
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
class _Cell:
    """A complete cell: its training, and its agent's row of the result table."""

    cell: GridCell
    plan: Plan
    row: dict[str, Any]


def sync_grid(record: GridRecord, runs_dir: Path, verdicts: Sequence[str] = ()) -> None:
    """Bring MLflow's runs for the complete rows of a grid to what the runs folder holds; a store away is a warning.

    `verdicts` are the sentences of the grid's report; they become a tag of each run.
    """
    try:
        roots = {name: experiments_dir(runs_dir) / name for name in sorted(record.experiments)}
        plans = {name: find_plan(runs_dir, name) for name, root in roots.items() if (root / RESULT_FILE).is_file()}
        rows = list(_rows(record, plans))
        plan = next(iter(plans.values()), None)
        uri = plan_tracking_uri(plan) if plan is not None and rows else None
        if plan is None or uri is None:
            return
        from flows.records.mlflow_store import RunContent

        store = open_store(plan.config, uri, results=True)
        write_json(runs_dir / STATE_FILE, {"experiment": store.experiment_id})
        store.add_columns(
            params=("pair", "method", "seed", *SYMBOLS),
            metrics=(*(f"{MEAN}/{name}" for name in record.benchmarks), "tokens_sampled", "hours"),
        )
        for cells in rows:
            cell = cells[0].cell
            name = " ".join(filter(None, (cell.pair, cell.method, cell.label, f"seed {cell.seed}")))
            ids = [own.cell.experiment for own in cells]
            key = digest_of([name, *ids])  # rows with different settings have different experiments
            members = [membership("grid", record.name), membership("pair", cell.pair)]
            tags = {**dict.fromkeys(members, "true"), "hacpo.experiments": " ".join(dict.fromkeys(ids))}
            if verdicts:
                tags[membership("verdict", record.name)] = "; ".join(verdicts)
            store.write(key, [RunContent(name, "FINISHED", tags, _params(cells), list(_batches(cells)))])
    except HacpoError as error:
        _log.warning("grid %s: not sent to MLflow: %s; `hacpo sync` sends it later", record.name, first_line(error))


def _rows(record: GridRecord, plans: dict[str, Plan]) -> Iterator[list[_Cell]]:
    """The cells of each pair, method and seed whose agents' trainings are all complete, in grid order."""
    rows: dict[tuple[Any, ...], list[GridCell]] = {}
    for cell in record.cells:
        rows.setdefault(cell.key[:-1], []).append(cell)
    tables = {name: final.table for name, plan in plans.items() if (final := read_final(plan)) is not None}
    for cells in rows.values():
        if all(cell.experiment in tables for cell in cells):
            yield [
                _Cell(cell, plans[cell.experiment], row)
                for cell in cells
                for row in tables[cell.experiment]
                if row["agent"] == cell.agent
            ]


def _params(cells: Sequence[_Cell]) -> dict[str, Any]:
    """Parameters on which a row's experiments agree, and those of single agents; method and models are the grid's."""
    configs = [parameters(cell.plan.config) for cell in cells]
    values = {name: value for config in configs for name, value in config.items()}
    common = {name: value for name, value in values.items() if all(c.get(name, value) == value for c in configs)}
    cell = cells[0].cell
    names = {"pair": cell.pair, "method": cell.method, "label": cell.label, "seed": cell.seed}
    models = {"model_pair": " + ".join(own.cell.agent for own in cells)}
    return common | {name: value for name, value in names.items() if value != ""} | models


def _batches(cells: Sequence[_Cell]) -> Iterator[Batch]:
    """Means of accuracy and reward over the agents by step, and what training cost."""
    from flows.records.mlflow_store import Batch

    last = {cell.plan.root: last_step(cell.plan.root, cell.plan.config) for cell in cells}
    ended_ms = max(int(StepStore(root).metrics(step)["timestamp_ms"]) for root, step in last.items())
    costs = {name: sum(cell.row[column] for cell in cells) / unit for name, column, unit in _COSTS}
    begun_ms = max(0, ended_ms - int(3_600_000 * costs["hours"]))  # MLflow's duration is the training's
    curves = [_curves(cell, last[cell.plan.root]) for cell in cells]
    for name in [name for name in curves[0] if all(name in curve for curve in curves)]:
        values = [curve[name] for curve in curves]
        for step in sorted({step for by_step in values for step in by_step}):
            # an agent that trained alone and ended earlier keeps its last value
            reached = [max((s for s in by_step if s <= step), default=None) for by_step in values]
            at_step = [by_step[s] for by_step, s in zip(values, reached, strict=True) if s is not None]
            if len(at_step) == len(cells):
                yield Batch(step, ended_ms if step else begun_ms, {f"{MEAN}/{name}": sum(at_step) / len(cells)})
    yield Batch(max(last.values()), ended_ms, costs)


def _curves(cell: _Cell, last: int) -> dict[str, dict[int, float]]:
    """An agent's reward and accuracies: name to value by step."""
    agent, store = cell.cell.agent, StepStore(cell.plan.root)
    metrics = {step: store.metrics(step)["agents"][agent] for step in range(1, last + 1)}
    curves = {"reward": {step: float(values["reward/mean"]) for step, values in metrics.items()}}
    for result in results(cell.plan.root):
        if result.agent == agent:
            curves.setdefault(result.benchmark, {})[result.step] = result.value
    return curves
