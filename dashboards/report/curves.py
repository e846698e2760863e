"""Curves of a grid's methods, a panel per agent, a line per method with its 95 % t interval over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping

import pandas as pd

from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.charts.palette import method_strokes
from dashboards.report.comparison import Comparer, Path
from dashboards.report.results import Results
from dashboards.report.statistics import summarize

_METRICS = {
    "reward/mean": "mean reward of the step's rollouts",
    "capability/smoothed": "capability: mean reward of the last K steps",
    "ratio_cross/mean": "mean ratio of cross-agent responses",
    "clip_cross/stopped_share": "share of cross-agent rows whose gradient is clipped",
    "response/length_tokens": "mean response length, tokens",
}
_SMOOTHED = {"reward/mean": 5}


def accuracy_curves(comparer: Comparer, benchmark: str) -> Chart | None:
    """Accuracy on a benchmark (or their average) against sampled tokens, each agent and all together.

    Complete seeds, or without one those that have begun; and the paper's values at the end. None before any evaluation.
    """
    rows: list[dict[str, object]] = []
    for line in sorted(comparer.lines, key=lambda line: line.agents != comparer.agents):  # all together first
        paths = comparer.paths(line.variant, line.agents, benchmark)
        points = list(_rows({"agent": line.agent, "line": line.variant.title}, paths))
        paper = line.figures[comparer.columns.index(benchmark)].paper if benchmark in comparer.columns else None
        if points and paper is not None:
            points.append(points[-1] | {"kind": "paper", "value": paper, "low": math.nan, "high": math.nan})
        rows += points
    if not rows:
        return None
    strokes = method_strokes(variant.title for variant in comparer.variants)
    return charts.curves(
        "curves", "", pd.DataFrame(rows), x="tokens sampled", y="accuracy", strokes=strokes, facet="agent",
        reference="paper's accuracy",
    )  # fmt: skip


def _rows(labels: Mapping[str, str], by_seed: Mapping[int, Path]) -> Iterator[dict[str, object]]:
    """Rows of a line: of several seeds each one's, then their mean at the steps that all have."""
    paths = {seed: path for seed, path in by_seed.items() if path}
    for seed, path in paths.items() if len(paths) > 1 else ():
        for step, (x, value) in path.items():
            own = {"x": x, "value": value, "low": math.nan, "high": math.nan}
            yield {**labels, "kind": "seed", "seed": str(seed), "step": step, **own}
    for step in sorted(set.intersection(*map(set, paths.values()))) if paths else []:
        summary = summarize([path[step][1] for path in paths.values()])
        low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
        mean = {"x": statistics.fmean(path[step][0] for path in paths.values()), "value": summary.mean}
        yield {**labels, "kind": "mean", "seed": "", "step": step, **mean, "low": low, "high": high}


def training_curves(results: Results) -> Iterator[Chart]:
    """A chart by step of every metric that was measured during training, accuracies first."""
    frames = results.frames.values()
    accuracies = {
        metric: f"accuracy on {metric.removeprefix('evaluate/').removesuffix('_accuracy')}"
        for metric in sorted({metric for frame in frames for metric in frame.metric})
        if re.fullmatch(r"evaluate/.+_accuracy", metric)
        and any(frame.loc[frame.metric == metric, "step"].nunique() > 2 for frame in frames)
    }
    strokes = method_strokes(variant.title for variant in results.runs.variants)
    for metric, label in {**accuracies, **_METRICS}.items():
        table = _table(results, metric)
        if not table.empty:
            curve_strokes = {title: stroke for title, stroke in strokes.items() if (table["line"] == title).any()}
            yield charts.curves(
                re.sub(r"[^A-Za-z0-9]+", "_", metric),
                label[0].upper() + label[1:],
                table,
                x="step",
                y=label,
                strokes=curve_strokes,
                facet="agent",
                smooth=_SMOOTHED.get(metric, 1),
            )


def _table(results: Results, metric: str) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for pair, agent in results.runs.places():
        for variant in results.runs.variants:
            paths: dict[int, Path] = {}
            for seed, frame in sorted(results.of(pair, agent, variant).items()):
                curve = frame.loc[frame.metric == metric, ["step", "value"]].dropna()
                paths[seed] = {int(step): (float(step), float(value)) for step, value in curve.itertuples(index=False)}
            rows += _rows({"agent": results.label(pair, agent), "line": variant.title}, paths)
    return pd.DataFrame(rows)
