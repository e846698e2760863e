"""Charts of a comparison: verdicts, accuracy against cost, accuracy after training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.charts.palette import Stroke, method_strokes
from dashboards.models.grids.comparison import Comparer, PairTable
from dashboards.models.grids.evaluations import CurvePoint
from dashboards.report.cells import Variant

COSTS = {"tokens": "tokens sampled, all agents shown", "time": "time", "steps": "steps"}
_TIMES = (("hours", 1.0, 1.5), ("minutes", 60.0, 1.5 / 60), ("seconds", 3600.0, 0.0))
"""units of time, how many an hour has, and from how many hours on a chart uses them"""


def time_label(comparison: PairTable) -> str:
    """What the times of a comparison are."""
    return "GPU time" if comparison.has_gpu else "time of phases (no GPU was used)"


def strokes_of(comparison: PairTable) -> dict[str, Stroke]:
    """Colour and dashes of each method."""
    return method_strokes(variant.title for variant in comparison.variants)


def curves_chart(
    comparer: Comparer, comparison: PairTable, agents: Sequence[str], benchmarks: Sequence[str], cost: str,
    paper_values: Mapping[Variant, float],
) -> Chart | None:  # fmt: skip
    """Accuracy against cost: mean over seeds with its interval, each seed, and the paper's values at the end."""
    rows: list[dict[str, object]] = []
    for variant in comparison.variants:
        points = comparer.curve(variant, agents, benchmarks)
        rows += _rows(variant, "mean", "", points, cost, comparison)
        for seed, path in comparer.paths(variant, agents, benchmarks).items():
            rows += _rows(variant, "seed", str(seed), path, cost, comparison)
        if variant in paper_values and points:
            end = _rows(variant, "paper", "", points[-1:], cost, comparison)[0]
            rows.append(end | {"value": paper_values[variant], "low": math.nan, "high": math.nan})
    if not rows:
        return None
    table, label, unit = pd.DataFrame(rows), COSTS[cost], cost
    if cost == "time":
        unit, factor, _ = next(time_unit for time_unit in _TIMES if table["x"].max() >= time_unit[2])
        table["x"] *= factor
        label = f"{time_label(comparison)}, {unit}"
    table["x_unit"] = unit
    strokes = strokes_of(comparison)
    return charts.curves("curves", "", table, x=label, y="accuracy", strokes=strokes, reference="paper's accuracy")


def _rows(
    variant: Variant, kind: str, seed: str, points: Iterable[CurvePoint], cost: str, comparison: PairTable
) -> list[dict[str, object]]:
    hours = "gpu_hours" if comparison.has_gpu else "hours"
    field = {"tokens": "tokens", "time": hours, "steps": "step"}[cost]
    return [
        {
            "line": variant.title,
            "kind": kind,
            "seed": seed,
            "step": point.step,
            "x": getattr(point, field),
            "value": point.value,
            "low": point.value - point.half_width,
            "high": point.value + point.half_width,
        }
        for point in points
    ]


def results_chart(comparison: PairTable, column: int) -> Chart | None:
    """Accuracy after training by agent and method, with the paper's values."""
    rows = [
        {
            "agent": line.agent,
            "line": line.variant.title,
            "benchmark": comparison.columns[column],
            "value": figure.summary.mean,
            "low": figure.summary.mean - figure.summary.half_width,
            "high": figure.summary.mean + figure.summary.half_width,
            "paper": figure.paper if figure.paper is not None else math.nan,
            "seeds": line.num_seeds,
            "tokens_sampled": line.tokens,
            "gpu_hours": line.gpu_hours,
            "phase_hours": line.hours,
        }
        for line in comparison.lines
        for figure in [line.figures[column]]
        if figure.summary is not None
    ]
    if not rows:
        return None
    strokes = method_strokes(["before training", *(variant.title for variant in comparison.variants)])
    label = f"accuracy, {comparison.columns[column]}"
    return charts.intervals("results", "", pd.DataFrame(rows), x=label, strokes=strokes, facet="agent")
