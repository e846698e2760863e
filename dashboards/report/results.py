"""The complete experiments of a grid with all that a report shows of them, and its other cells; as a file, too."""

import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from dashboards.report.cells import GridRuns, Variant, read_runs
from dashboards.report.differences import problem_scores
from flows.grids.planner import GridConfig, GridPlan
from flows.planning.plans import Plan
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import PROGRESS_FILE, Progress, read_progress
from flows.records.states import ExperimentStatus
from flows.runs.results import read_final, result_values
from flows.service.experiment_state import ExperimentState
from hacpo_core.errors import ConfigError, StoreError
from hacpo_core.evaluation.results import results
from hacpo_core.files import write_atomically
from hacpo_core.store.steps import StepStore

_COMMIT = "mlflow.source.git.commit"
_SHOWN = re.compile(
    r"reward/mean|capability/smoothed|response/length_tokens|(?:ratio|clip)_(?:own|cross)/.*|evaluate/.*_accuracy"
)
"""metrics that a report shows"""


@dataclass(frozen=True, slots=True)
class CompleteExperiment:
    """A complete experiment; metrics are columns step, agent, metric and value, evaluations included.

    `scores` are those of each problem after the last step, by agent, benchmark and problem id; None: unknown.
    """

    progress: Progress
    metrics: dict[str, list[int | str | float | None]]
    scores: dict[str, dict[str, dict[str, float | None]]]


@dataclass(frozen=True)
class Results:
    """A grid's complete experiments by id, and the cells without a result.

    Attributes:
        config: the grid's declaration.
        metric_kinds: the metric of every benchmark, such as "avg".
        versions: ids by the version of the code that made them.
    """

    config: GridConfig
    record: GridRecord
    metric_kinds: dict[str, str]
    versions: dict[str, list[str]]
    missing: list[tuple[GridCell, ExperimentState]]
    experiments: dict[str, CompleteExperiment]

    @cached_property
    def frames(self) -> Mapping[str, pd.DataFrame]:
        """Metrics by experiment."""
        return {name: pd.DataFrame(experiment.metrics) for name, experiment in self.experiments.items()}

    @cached_property
    def runs(self) -> GridRuns:
        """All cells, complete or not."""
        done = {name: ExperimentStatus("done", done.progress, None) for name, done in self.experiments.items()}
        runs = read_runs(self.record, lambda name: done.get(name, ExperimentStatus("missing", None, None)), Path)
        by_seed = {
            place: {
                seed: replace(run, scores=self.experiments[run.root.name].scores[run.agent]) if run.last else run
                for seed, run in runs_of.items()
            }
            for place, runs_of in runs.by_seed.items()
        }
        return GridRuns(self.record, by_seed)

    def label(self, pair: str, agent: str) -> str:
        """Name of an agent, with its pair if there are several."""
        return f"{agent} ({pair})" if len(self.runs.pairs) > 1 else agent

    def of(self, pair: str, agent: str, variant: Variant) -> dict[int, pd.DataFrame]:
        """Metrics of the complete runs of a pair, agent and method, by seed."""
        runs = self.runs.by_seed.get((pair, agent, variant), {})
        frames = {seed: self.frames[run.root.name] for seed, run in runs.items() if run.root.name in self.frames}
        return {seed: frame[frame.agent == agent] for seed, frame in frames.items()}


_ADAPTER = TypeAdapter(Results)


def read_results(grid: GridPlan) -> Results:
    """Read every complete experiment of a grid once; an unreadable one counts as missing, with the reason."""
    states, experiments = dict(grid.states), dict[str, CompleteExperiment]()
    versions: dict[str, list[str]] = {}
    for name, plan in grid.plans.items():
        if states[name].state == "done":
            try:
                experiments[name] = _read(plan)
                versions.setdefault(_version(plan), []).append(name)
            except StoreError as error:
                states[name] = ExperimentState("unreadable", str(error))
    missing = [(cell, states[cell.experiment]) for cell in grid.cells if cell.experiment not in experiments]
    configs = [plan.config.evaluate for plan in grid.plans.values()]
    kinds = {name: benchmark.metric for config in configs for name, benchmark in config.benchmarks.items()}
    return Results(grid.config, grid.record, kinds, versions, missing, experiments)


def _read(plan: Plan) -> CompleteExperiment:
    progress, store = read_progress(plan.root), StepStore(plan.root)
    if progress is None:
        raise StoreError(f"{plan.root / PROGRESS_FILE} is missing or corrupt")
    values = [(step, store.metrics(step)["agents"]) for step in range(1, progress.num_steps + 1)]
    values += [(result.step, {result.agent: result_values(result)}) for result in results(plan.root)]
    rows = [
        (step, agent, name, value)
        for step, agents in values
        for agent, metrics in agents.items()
        for name, value in metrics.items()
        if _SHOWN.fullmatch(name)
    ]
    metrics = dict(zip(("step", "agent", "metric", "value"), map(list, zip(*rows, strict=True)), strict=True))
    scores: dict[str, dict[str, dict[str, float | None]]] = {agent: {} for agent in plan.config.pair.agents}
    for e in progress.evaluations:
        if e.step == progress.num_steps:
            score_P = problem_scores(plan.root, e.step, e.benchmark, e.agent, e.value)
            scores[e.agent][e.benchmark] = {str(p): None if pd.isna(s) else float(s) for p, s in score_P.items()}
    return CompleteExperiment(progress, metrics, scores)


def _version(plan: Plan) -> str:
    """Version and commit of the code that produced a result."""
    final = read_final(plan.root)
    versions = final.versions if final is not None else {}
    package, commit = versions.get("version.hacpo", "unknown version"), versions.get(_COMMIT)
    return f"hacpo {package}, commit {commit}" if commit else f"hacpo {package}"


def save_results(results: Results, path: Path) -> None:
    """Write the results into a compressed file, from which the report can be written again without the runs.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomically(path, gzip.compress(_ADAPTER.dump_json(results), mtime=0))


def load_results(path: Path) -> Results:
    """The results in a file that `save_results` wrote.

    Raises:
        ConfigError: it cannot be read, or it holds something else.
    """
    try:
        return _ADAPTER.validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        message = f"{path}: got no results of a grid ({error}), expected a file that `hacpo report` wrote"
        raise ConfigError(message) from error
