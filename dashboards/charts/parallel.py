"""Parallel coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from dashboards.charts.charts import Chart, Spec
from dashboards.charts.palette import Stroke, scales


def parallel(
    name: str, caption: str, table: pd.DataFrame, *, axes: Sequence[str], strokes: Mapping[str, Stroke]
) -> Chart:
    """Parallel coordinates: a line per row across several columns, each scaled to its own range.

    Args:
        name: of the downloads.
        caption: what is shown.
        table: columns `line` (colour), `id`, and one of numbers per axis.
        axes: columns to show, from left to right.
        strokes: by line.
    """
    colour, _ = scales(strokes)
    # A dot in a field's name means a nested field to Vega-Lite.
    table, axes = table.rename(columns=lambda column: column.replace(".", " ")), [a.replace(".", " ") for a in axes]
    labels = {"labelAngle": 0, "labelPadding": 16, "labelLimit": 140, "labelExpr": "split(datum.label, ' ')"}
    across = {"field": "axis", "type": "nominal", "title": None, "sort": axes, "axis": labels}
    up = {"field": "height", "type": "quantitative", "axis": None}
    ends: list[Spec] = [
        {"transform": [
            # Vega-Lite merges aggregates that have the same name.
            {"aggregate": [{"op": op, "field": "value", "as": op}], "groupby": ["axis"]},
            {"calculate": f"format(datum.{op}, abs(datum.{op}) < 1000 ? '.3~g' : '.3~s')", "as": "end"},
         ],
         "mark": {"type": "text", "dy": shift},
         "encoding": {"x": across, "y": {"value": place}, "text": {"field": "end", "type": "nominal"}}}
        for op, place, shift in (("max", 0, -8), ("min", "height", 10))
    ]  # fmt: skip
    spec: Spec = {
        "width": "container",
        "height": 260,
        "transform": [
            {"fold": list(axes), "as": ["axis", "value"]},
            {"filter": "isValid(datum.value)"},
            {
                "joinaggregate": [
                    {"op": "min", "field": "value", "as": "least"},
                    {"op": "max", "field": "value", "as": "most"},
                ],
                "groupby": ["axis"],
            },
            {
                "calculate": "datum.most == datum.least ? 0.5"
                " : (datum.value - datum.least) / (datum.most - datum.least)",
                "as": "height",
            },
        ],
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.3}, "encoding": {"x": across}},
            {
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {
                    "x": across,
                    "y": up,
                    "color": {"field": "line", "type": "nominal", "title": None, "scale": colour},
                    "detail": {"field": "id"},
                    "tooltip": [{"field": "id"}, {"field": "axis"}, {"field": "value", "format": ".4~g"}],
                    "opacity": {"condition": {"param": "toggle", "value": 0.8}, "value": 0.05},
                },
                "params": [{"name": "toggle", "select": {"type": "point", "fields": ["line"]}, "bind": "legend"}],
            },
            *ends,
        ],
    }
    return Chart(name, caption, spec, table)
