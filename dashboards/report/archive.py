"""A grid's results in one compressed file, from which its report can be written again without the runs."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from dashboards.report.cells import GridRuns, read_runs
from dashboards.report.differences import final_scores
from dashboards.report.results import Results
from flows.grids.planner import GridConfig
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import Progress
from flows.records.states import ExperimentStatus
from flows.service.experiment_state import ExperimentState
from hacpo_core.errors import ConfigError
from hacpo_core.files import write_atomically

_SHOWN = r"reward/mean|capability/smoothed|response/length_tokens|(?:ratio|clip)_(?:own|cross)/.*|evaluate/.*_accuracy"
"""metrics that a report shows"""
Scores = dict[str, dict[str, float | None]]
"""score of each problem after the last step, by benchmark and problem id; None: unknown"""


@dataclass(frozen=True, slots=True)
class _Run:
    """A complete experiment; metrics are columns of `Results.metrics`, scores are by agent."""

    progress: Progress
    metrics: dict[str, list[int | str | float | None]]
    scores: dict[str, Scores]


@dataclass(frozen=True, slots=True)
class _Archive:
    """What the file holds; `runs` by experiment."""

    config: GridConfig
    record: GridRecord
    metric_kinds: dict[str, str]
    versions: dict[str, list[str]]
    missing: list[tuple[GridCell, ExperimentState]]
    runs: dict[str, _Run]


_ADAPTER = TypeAdapter(_Archive)


def save_results(results: Results, path: Path) -> None:
    """Write the results into a file; the same results give the same bytes.

    Raises:
        StoreError: it cannot be written, or the responses to a benchmark cannot be read.
    """
    scores: dict[Path, dict[str, Scores]] = {}
    for by_seed in results.runs.by_seed.values():
        for run in by_seed.values():
            if run.root in results.metrics:
                scores.setdefault(run.root, {})[run.agent] = {
                    benchmark: {str(problem): None if pd.isna(score) else score for problem, score in found.items()}
                    for benchmark in run.at(run.last)
                    for found in [final_scores(run, benchmark)]
                }
    runs = {}
    for root, frame in results.metrics.items():
        shown = frame[frame.metric.str.fullmatch(_SHOWN)]
        runs[root.name] = _Run(
            results.progress[root.name], {str(name): shown[name].tolist() for name in shown}, scores.get(root, {})
        )
    archive = _Archive(
        results.config,
        results.runs.record,
        dict(results.metric_kinds),
        dict(results.versions),
        results.missing,
        dict(sorted(runs.items())),
    )
    write_atomically(path, gzip.compress(_ADAPTER.dump_json(archive), mtime=0))


def load_results(path: Path) -> Results:
    """The results in a file that `save_results` wrote.

    Raises:
        ConfigError: it cannot be read, or it holds something else.
    """
    try:
        archive = _ADAPTER.validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        message = f"{path}: got no results of a grid ({error}), expected a file that `hacpo report` wrote"
        raise ConfigError(message) from error
    states = {name: ExperimentStatus("done", run.progress, None) for name, run in archive.runs.items()}
    nothing = ExperimentStatus("missing", None, None)
    runs = read_runs(archive.record, lambda name: states.get(name, nothing), Path)
    by_seed = {
        place: {
            seed: replace(run, scores=_series(archive.runs[run.root.name].scores[run.agent])) if run.last else run
            for seed, run in runs_of.items()
        }
        for place, runs_of in runs.by_seed.items()
    }
    return Results(
        archive.config,
        GridRuns(archive.record, by_seed),
        {Path(name): pd.DataFrame(run.metrics) for name, run in archive.runs.items()},
        {name: run.progress for name, run in archive.runs.items()},
        archive.metric_kinds,
        archive.versions,
        archive.missing,
    )


def _series(scores: Scores) -> dict[str, pd.Series]:
    return {benchmark: pd.Series(found, dtype=float) for benchmark, found in scores.items()}
