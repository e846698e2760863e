"""Curves of a grid's methods, a panel per agent, a line per method with its 95 % t interval over seeds."""

import math
import re
from collections.abc import Iterator, Mapping

import pandas as pd

from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.charts.palette import method_strokes
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
Values = Mapping[int, float]
"""by step"""


def _rows(labels: Mapping[str, str], by_seed: Mapping[int, Values]) -> Iterator[dict[str, object]]:
    """Rows of a line: of several seeds each one's, then their mean at the steps that all have."""
    values = {seed: of_seed for seed, of_seed in by_seed.items() if of_seed}
    for seed, of_seed in values.items() if len(values) > 1 else ():
        for step, value in of_seed.items():
            own = {"x": step, "value": value, "low": math.nan, "high": math.nan}
            yield {**labels, "kind": "seed", "seed": str(seed), **own}
    for step in sorted(set.intersection(*map(set, values.values()))) if values else []:
        summary = summarize([of_seed[step] for of_seed in values.values()])
        low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
        yield {**labels, "kind": "mean", "seed": "", "x": step, "value": summary.mean, "low": low, "high": high}


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
            values: dict[int, Values] = {}
            for seed, frame in sorted(results.of(pair, agent, variant).items()):
                curve = frame.loc[frame.metric == metric, ["step", "value"]].dropna()
                values[seed] = {int(step): float(value) for step, value in curve.itertuples(index=False)}
            rows += _rows({"agent": results.label(pair, agent), "line": variant.title}, values)
    return pd.DataFrame(rows)
