"""What MLflow should hold of an experiment, and of the complete rows of a grid; read from the runs folder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flows.planning.plans import Plan
from flows.records.gridfile import GridRecord, read_grids
from flows.records.progress import read_progress
from flows.records.states import experiment_status
from flows.records.versions import version_tags
from flows.runs.results import grid_table, result_values
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.fields import fields_of
from hacpo_core.config.schema import digest_of
from hacpo_core.evaluation.best import best_steps
from hacpo_core.evaluation.results import read_result, results
from hacpo_core.evaluation.stopping import last_step
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # importing takes 0.2 s
    import pandas as pd

MEAN = "mean"
"""first part of the names of metrics that are means over a pair's agents"""
_COSTS = {"tokens_sampled": "tokens_sampled", "tokens_trained": "tokens_trained", "seconds": "hours"}
_COSTS |= {"gpu_seconds": "gpu_hours"}
"""columns of the result table, and metrics of what a training cost"""
_STATUSES = {"done": "FINISHED", "failed": "FAILED", "running": "RUNNING", "missing": "KILLED"}
"""MLflow's, by the state of the experiment"""
SYMBOLS = {
    "α": "method.objective.cross_exponent",
    "δ": "method.objective.cross_floor",
    "δ_step": "method.objective.cross_step",
    "K": "method.estimate.window",
}
"""the paper's symbols, parameters of those runs in which their fields act; the floor is 1 - δ"""
_NAMES = ("pair.name", "method.name")
_FORBIDDEN = re.compile(r"[^/\w.\- :]")
"""characters that a key in MLflow may not have"""


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
    batches: Sequence[Batch]


def experiment_content(plan: Plan, status: str | None = None, first_step: int = 0) -> RunContent:
    """An experiment's run.

    Args:
        plan: of the experiment.
        status: "RUNNING", "FINISHED", "FAILED" or "KILLED"; None: by the state of the folder.
        first_step: metrics of earlier steps are left out.
    """
    status = status or _STATUSES[experiment_status(plan.root).state]
    return RunContent(
        plan.id, status, _tags(plan) | _findings(plan), _parameters(plan.config), list(_batches(plan, first_step))
    )


def _batches(plan: Plan, first_step: int) -> Iterator[Batch]:
    """Metrics from a step on, and all evaluations, since damaged ones are made again at the end.

    An agent's are named after it: `reward/mean.qwen`. Of the accuracies there is a mean over all agents.
    """
    store = StepStore(plan.root)
    for step in range(store.last_step() + 1):
        if step and step >= first_step and store.is_intact(step, "metrics"):
            metrics = store.metrics(step)
            values = metrics["run"] | {
                name: value for agent, of_agent in metrics["agents"].items() for name, value in _named(of_agent, agent)
            }
            yield Batch(step, int(metrics["timestamp_ms"]), values)
        accuracies: defaultdict[str, list[float]] = defaultdict(list)
        for phase in store.committed(step):
            if phase.startswith("evaluate.") and store.is_intact(step, phase):
                result, time_ms = read_result(store, step, phase), store.committed_at_ms(step, phase)
                yield Batch(step, time_ms, dict(_named(result_values(result), result.agent)))
                accuracies[result.benchmark].append(result.value)
                if len(accuracies[result.benchmark]) == len(plan.config.pair.agents):
                    mean = fmean(accuracies[result.benchmark])
                    yield Batch(step, time_ms, {f"evaluate/{result.benchmark}_accuracy": mean})


def _named(values: Mapping[str, float], agent: str) -> Iterator[tuple[str, float]]:
    return ((f"{name}.{agent}", value) for name, value in values.items())


def _membership(kind: str, name: str) -> str:
    """Tag of what belongs to a grid or pair; its value is "true"."""
    return f"{kind}.{_FORBIDDEN.sub('-', name)}"


def _parameters(config: ExperimentConfig) -> dict[str, Any]:
    """Method, models and seed, the paper's symbols for fields that act, and what differs from the schema's defaults.

    Of the latter only fields that can change results, and no names. Grids and pairs can change, which a parameter
    cannot: they are tags.
    """
    acting = {field.name: field for field in fields_of(config) if field.inert is None}
    symbols = {symbol: acting[name].value for symbol, name in SYMBOLS.items() if name in acting}
    if "δ" in symbols:
        symbols["δ"] = round(1.0 - symbols["δ"], 12)
    names = {"method": config.method.name, "model_pair": " + ".join(config.pair.agents), "seed": config.seed}
    changed_fields = {name: field.value for name, field in acting.items() if field.is_identity and not field.is_default}
    return {**names, **symbols, **{name: value for name, value in changed_fields.items() if name not in _NAMES}}


def _tags(plan: Plan) -> dict[str, str]:
    """Pair, a tag for each grid and pair that the experiment belongs to, and versions.

    A grid's training of one agent belongs to the grid's pairs, not to one of its own.
    """
    grids = read_grids(Path(plan.config.runtime.runs_dir))
    cells = [(grid.name, cell) for grid in grids for cell in grid.cells if cell.experiment == plan.id]
    pairs = sorted({cell.pair for _, cell in cells}) or [plan.config.pair.name]
    members = [_membership("pair", pair) for pair in pairs] + [_membership("grid", grid) for grid, _ in cells]
    return {"pair": ", ".join(pairs), **dict.fromkeys(members, "true"), **version_tags()}


def _findings(plan: Plan) -> dict[str, str]:
    """What is wrong with the training, and the steps with the best accuracies."""
    progress, best = read_progress(plan.root), best_steps(plan.root, plan.config)
    tags = {"hacpo.best": "; ".join(f"step {step}: {value:.3f}" for step, value in best.items())} if best else {}
    if progress is not None:
        findings = [f"{finding.rule} ({finding.agent})" for finding in progress.open_findings]
        tags["hacpo.health"] = "; ".join(findings) or "no finding"
    return tags


def grid_contents(
    record: GridRecord, runs_dir: Path, plan_of: Callable[[str], Plan], verdicts: Sequence[str]
) -> Iterator[tuple[str, Plan, RunContent]]:
    """Key, a plan and content of a run for each complete pair, method and seed; metrics have one name for all methods.

    A method that trains agents alone has an experiment for each of them; here they are one row, beside the row of a
    method that trains them together. So MLflow's own table, charts and comparison put methods side by side.

    Args:
        record: the grid.
        runs_dir: folder of all runs.
        plan_of: plan of an experiment, by id.
        verdicts: sentences of the grid's report, which become a tag of each run.
    """
    cells = [cell.key[:-1] for cell in record.cells]
    groups: Any = grid_table(record, runs_dir).groupby(["pair", "method", "label", "seed"], sort=False)
    for key, rows in groups:
        if len(rows) < cells.count(key):
            continue
        pair, method, label, seed = key
        plans = {name: plan_of(name) for name in rows.run}
        name = " ".join(filter(None, (pair, method, label, f"seed {seed}")))
        members = [_membership("grid", record.name), _membership("pair", pair)]
        tags = {**dict.fromkeys(members, "true"), "hacpo.experiments": " ".join(dict.fromkeys(rows.run))}
        if verdicts:
            tags[_membership("verdict", record.name)] = "; ".join(verdicts)
        configs = [_parameters(plans[run].config) for run in rows.run]
        values = {name: value for config in configs for name, value in config.items()}
        params = {name: value for name, value in values.items() if all(c.get(name, value) == value for c in configs)}
        names = {"pair": pair, "method": method, "label": label, "seed": seed, "model_pair": " + ".join(rows.agent)}
        params |= {name: value for name, value in names.items() if value != ""}
        content = RunContent(name, "FINISHED", tags, params, list(_mean_batches(rows, plans)))
        # rows with different settings have different experiments
        yield digest_of([name, *rows.run]), plans[rows.run.iloc[0]], content


def _mean_batches(rows: pd.DataFrame, plans: Mapping[str, Plan]) -> Iterator[Batch]:
    """Means of accuracy and reward over the agents by step, and what training cost."""
    import pandas as pd

    points, lasts, ends_ms = list[tuple[str, str, int, float]](), list[int](), list[int]()
    for run, agent in zip(rows.run, rows.agent, strict=True):
        store, last = StepStore(plans[run].root), last_step(plans[run].root, plans[run].config)
        metrics = {step: store.metrics(step) for step in range(1, last + 1)}
        points += [("reward", agent, step, m["agents"][agent]["reward/mean"]) for step, m in metrics.items()]
        points += [(r.benchmark, agent, r.step, r.value) for r in results(store.root) if r.agent == agent]
        lasts.append(last)
        ends_ms.append(int(metrics[last]["timestamp_ms"]))
    costs = (rows[list(_COSTS)].sum() / [1, 1, 3600, 3600]).rename(_COSTS)
    begun_ms = max(0, max(ends_ms) - int(3_600_000 * costs["hours"]))  # MLflow's duration is the training's
    table = pd.DataFrame(points, columns=["name", "agent", "step", "value"])
    for name, curve in table.groupby("name", sort=False):
        # an agent that trained alone and ended earlier keeps its last value
        by_agent = curve.pivot(index="step", columns="agent", values="value").reindex(columns=rows.agent).ffill()
        means: dict[Any, float] = by_agent.mean(axis=1, skipna=False).dropna().to_dict()
        for step, value in means.items():
            yield Batch(step, max(ends_ms) if step else begun_ms, {f"{MEAN}/{name}": value})
    yield Batch(max(lasts), max(ends_ms), dict(zip(_COSTS.values(), costs, strict=True)))
