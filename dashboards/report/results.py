"""The complete experiments of a grid with all of their metrics, and its cells without a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from dashboards.report.cells import GridRuns, Variant, read_runs
from flows.grids.planner import GridConfig, GridPlan
from flows.planning.plans import Plan
from flows.records.gridfile import GridCell
from flows.records.progress import Progress
from flows.records.states import ExperimentStatus, experiment_status
from flows.runs.results import read_curves, read_final
from flows.service.experiment_state import ExperimentState
from hacpo_core.errors import StoreError

_COMMIT = "mlflow.source.git.commit"


@dataclass(frozen=True, slots=True)
class Results:
    """A grid's complete experiments, and the cells without a result.

    Attributes:
        config: the grid's declaration.
        metrics: those of `read_curves`, by folder.
        progress: of the complete experiments, by id.
        metric_kinds: the metric of every benchmark, such as "avg".
        versions: ids by the version of the code that made them.
    """

    config: GridConfig
    runs: GridRuns
    metrics: Mapping[Path, pd.DataFrame]
    progress: Mapping[str, Progress]
    metric_kinds: Mapping[str, str]
    versions: Mapping[str, list[str]]
    missing: list[tuple[GridCell, ExperimentState]]

    def label(self, pair: str, agent: str) -> str:
        """Name of an agent, with its pair if there are several."""
        return f"{agent} ({pair})" if len(self.runs.pairs) > 1 else agent

    def of(self, pair: str, agent: str, variant: Variant) -> dict[int, pd.DataFrame]:
        """Metrics of the complete runs of a pair, agent and method, by seed."""
        runs = self.runs.by_seed.get((pair, agent, variant), {})
        metrics = {seed: self.metrics[run.root] for seed, run in runs.items() if run.root in self.metrics}
        return {seed: frame[frame.agent == agent] for seed, frame in metrics.items()}


def read_results(grid: GridPlan) -> Results:
    """Read every complete experiment of a grid once; an unreadable one counts as missing, with the reason."""
    states, metrics, versions = dict(grid.states), {}, dict[str, list[str]]()
    for name, plan in grid.plans.items():
        if states[name].state == "done":
            try:
                metrics[plan.root] = read_curves(plan.root)
                versions.setdefault(_version(plan), []).append(name)
            except StoreError as error:
                states[name] = ExperimentState("unreadable", str(error))
    roots = {name: plan.root for name, plan in grid.plans.items()}

    @cache
    def status_of(name: str) -> ExperimentStatus:
        if states[name].state == "done":
            return experiment_status(roots[name])
        return ExperimentStatus("missing", None, None)

    runs = read_runs(grid.record, status_of, lambda name: roots.get(name, Path(name)))
    missing = [(cell, states[cell.experiment]) for cell in grid.cells if states[cell.experiment].state != "done"]
    progress = {root.name: status.progress for root in metrics if (status := status_of(root.name)).progress is not None}
    configs = [plan.config.evaluate for plan in grid.plans.values()]
    kinds = {name: benchmark.metric for config in configs for name, benchmark in config.benchmarks.items()}
    return Results(grid.config, runs, metrics, progress, kinds, versions, missing)


def _version(plan: Plan) -> str:
    """Version and commit of the code that produced a result."""
    final = read_final(plan.root)
    versions = final.versions if final is not None else {}
    package, commit = versions.get("version.hacpo", "unknown version"), versions.get(_COMMIT)
    return f"hacpo {package}, commit {commit}" if commit else f"hacpo {package}"
