"""Chart of a comparison: accuracy against tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.charts.palette import method_strokes
from dashboards.report.cells import Variant
from dashboards.report.comparison import Comparer, CurvePoint, PairTable


def curves_chart(
    comparer: Comparer,
    comparison: PairTable,
    agents: Sequence[str],
    benchmarks: Sequence[str],
    paper_values: Mapping[Variant, float],
) -> Chart | None:
    """Accuracy against tokens: mean over seeds with its interval, each seed, and the paper's values at the end."""
    rows: list[dict[str, object]] = []
    for variant in comparison.variants:
        points = comparer.curve(variant, agents, benchmarks)
        rows += _rows(variant, "mean", "", points)
        for seed, path in comparer.paths(variant, agents, benchmarks).items():
            rows += _rows(variant, "seed", str(seed), path)
        if variant in paper_values and points:
            end = _rows(variant, "paper", "", points[-1:])[0]
            rows.append(end | {"value": paper_values[variant], "low": math.nan, "high": math.nan})
    if not rows:
        return None
    strokes, label = (
        method_strokes(variant.title for variant in comparison.variants),
        "tokens sampled, all agents shown",
    )
    table = pd.DataFrame(rows)
    return charts.curves("curves", "", table, x=label, y="accuracy", strokes=strokes, reference="paper's accuracy")


def _rows(variant: Variant, kind: str, seed: str, points: Iterable[CurvePoint]) -> list[dict[str, object]]:
    return [
        {
            "line": variant.title,
            "kind": kind,
            "seed": seed,
            "step": point.step,
            "x": point.tokens,
            "value": point.value,
            "low": point.value - point.half_width,
            "high": point.value + point.half_width,
        }
        for point in points
    ]
