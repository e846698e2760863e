"""A comparison as CSV."""

from __future__ import annotations

import math

import pandas as pd

from dashboards.charts.charts import inert
from dashboards.models.grids.comparison import Comparison


def as_csv(comparison: Comparison) -> str:
    """The table as CSV, one line per agent, method and benchmark."""
    rows = [
        {
            "grid": inert(comparison.grid),
            "pair": inert(comparison.pair),
            "agent": inert(line.agent),
            "method": inert(line.variant.method),
            "label": inert(line.variant.label),
            "benchmark": inert(name),
            "mean": figure.summary.mean if figure.summary is not None else math.nan,
            "half_width_95": figure.summary.half_width if figure.summary is not None else math.nan,
            "seeds": line.num_seeds,
            "seeds_planned": line.num_planned,
            "paper": figure.paper,
            "tokens_sampled": line.tokens,
            "gpu_hours": line.gpu_hours,
            "phase_hours": line.hours,
        }
        for line in comparison.lines
        for name, figure in zip(comparison.columns, line.figures, strict=True)
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n"))
