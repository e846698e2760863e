"""Training curves: a chart per metric, a panel per agent, a line per method with its interval over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def training_curves(results: Results) -> Iterator[Chart]:
    """A chart of every metric that was measured during training, accuracies first."""
    frames = results.metrics.values()
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
    """Each seed's values, and their mean with a 95 % t interval at the steps that all seeds have."""
    rows: list[dict[str, object]] = []
    for pair, agent in results.runs.places():
        for variant in results.runs.variants:
            label = {"agent": results.label(pair, agent), "line": variant.title}
            curves = {
                str(seed): frame[frame.metric == metric].set_index("step")["value"]
                for seed, frame in sorted(results.of(pair, agent, variant).items())
            }
            by_step = pd.DataFrame({seed: curve for seed, curve in curves.items() if len(curve)}).dropna()
            for step, values in by_step.iterrows():
                summary = summarize(list(values))
                low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
                mean = {"kind": "mean", "seed": "", "value": summary.mean, "low": low, "high": high}
                rows.append({**label, "x": step, **mean})
                rows += [
                    {**label, "x": step, "kind": "seed", "seed": seed, "value": value, "low": None, "high": None}
                    for seed, value in values.items()
                    if len(values) > 1
                ]
    return pd.DataFrame(rows)
