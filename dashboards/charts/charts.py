"""Charts as Vega-Lite specifications over one table each: a browser draws them, or `pictures` does.

A chart's table is what its CSV holds. `options` are what a reader may change: `seeds` (show single seeds), `smooth`,
`log_x`, `log_y`. A builder writes the specification in its unchanged state; `charts.js` changes it in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dashboards.charts.palette import Stroke, scales

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_TICKS = 6
"""about how many numbers are along an axis"""
_SHOWN = {"condition": {"param": "toggle", "value": 1}, "value": 0.07}
"""opacity: a line that the legend has switched off stays as a trace"""
VERDICTS = {"win": "#00875f", "tie": "#767b80", "loss": "#c6402f", "one seed": "#767b80"}
_VERDICT_SHAPES = {"win": "triangle-right", "tie": "circle", "loss": "triangle-left", "one seed": "square"}


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the file name of its downloads, a caption, its specification without data, and its data."""

    name: str
    caption: str
    spec: Spec
    table: pd.DataFrame
    options: tuple[str, ...] = ()

    def vega_lite(self) -> Spec:
        """The complete specification; numbers have six digits, unknown ones are null."""
        rows = [
            {name: _json_value(value) for name, value in row.items()} for row in self.table.to_dict(orient="records")
        ]
        return {"$schema": _SCHEMA, **self.spec, "data": {"values": rows}, "usermeta": {"options": list(self.options)}}

    def csv(self) -> str:
        """The table as CSV; names that a spreadsheet would read as a formula are quoted."""
        table = self.table.map(lambda value: inert(value) if isinstance(value, str) else value)
        return str(table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value


def inert(name: str) -> str:
    """The name, quoted if a spreadsheet would read it as a formula."""
    return f"'{name}" if name[:1] in "=+-@\t" and name else name


def curves(
    name: str,
    caption: str,
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    strokes: Mapping[str, Stroke],
    facet: str = "",
    smooth: int = 1,
    reference: str = "",
    line: str = "method",
) -> Chart:
    """Lines with a band each, and single seeds on demand.

    Args:
        name: of the downloads.
        caption: what is shown.
        table: columns `line`, `kind` ("mean", "seed", or "paper" for a point to compare with), `seed`, `x`, `value`,
            `low`, `high` (nan: no band), and the facet.
        x: label of the axis.
        y: label of the axis.
        strokes: by line, in the order of the legend.
        facet: column with one panel per value; "": one panel.
        smooth: number of points of the running mean that is shown at first.
        reference: what "paper" points are, for the hover text.
        line: what a line is, for the hover text.
    """
    layers = _curve_layers(x, y, strokes, line)
    if (table["kind"] == "paper").any():
        layers.append(_paper_points(layers[-1]["encoding"], reference))
    grouping = ["line", "kind", "seed", *([facet] if facet else [])]
    view: Spec = {
        "transform": [
            {
                "window": [{"op": "mean", "field": field, "as": field} for field in ("value", "low", "high")],
                "frame": [1 - smooth, 0],
                "groupby": grouping,
                "sort": [{"field": "x"}],
            }
        ],
        "params": [{"name": "showSeeds", "value": False}],
        "height": 260,
    }
    spec = _panels(view, layers, table, facet)
    options = ["smooth", "log_x", "log_y"]
    return Chart(name, caption, spec, table, ("seeds", *options) if (table["kind"] == "seed").any() else (*options,))


def _curve_layers(x: str, y: str, strokes: Mapping[str, Stroke], line: str) -> list[Spec]:
    """Bands, single seeds, means, and the points that show what the pointer is at."""
    colour, dash = scales(strokes)
    along = {
        "field": "x",
        "type": "quantitative",
        "title": x,
        "scale": {"nice": False, "zero": False},
        "axis": {"format": "~s", "labelOverlap": True, "tickCount": _TICKS},
    }
    legend = {"symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 3}
    up = {"field": "value", "type": "quantitative", "title": y, "scale": {"zero": False}, "axis": {"format": ".4~g"}}
    hue = {"field": "line", "type": "nominal", "title": None, "scale": colour, "legend": legend}
    tooltip = [
        {"field": "line", "title": line},
        {"field": "seed", "title": "seed"},
        {"field": "x", "title": x, "format": ",.4~s"},
        {"field": "value", "title": y, "format": ".4~g"},
        {"field": "low", "title": "low", "format": ".4~g"},
        {"field": "high", "title": "high", "format": ".4~g"},
    ]
    return [
        {
            "transform": [{"filter": "datum.kind == 'mean' && isValid(datum.low)"}],
            "mark": {"type": "area", "opacity": 0.15, "clip": True},
            "encoding": {
                "x": along,
                "y": up | {"field": "low"},
                "y2": {"field": "high"},
                "color": hue,
                "fillOpacity": {"condition": {"param": "toggle", "value": 1}, "value": 0.1},
            },
        },
        {
            "transform": [{"filter": "datum.kind == 'seed' && showSeeds"}],
            "mark": {"type": "line", "strokeWidth": 0.8, "clip": True},
            "encoding": {"x": along, "y": up, "color": hue, "detail": {"field": "seed"}, "opacity": _SHOWN},
        },
        {
            "transform": [{"filter": "datum.kind == 'mean'"}],
            "mark": {"type": "line", "strokeWidth": 2, "clip": True},
            "encoding": {
                "x": along,
                "y": up,
                "color": hue,
                "strokeDash": {"field": "line", "type": "nominal", "title": None, "scale": dash, "legend": legend},
                "opacity": _SHOWN,
            },
            "params": [
                {"name": "toggle", "select": {"type": "point", "fields": ["line"]}, "bind": "legend"},
                {
                    "name": "zoom",
                    "select": {"type": "interval", "zoom": "wheel![event.ctrlKey]", "clear": "dblclick"},
                    "bind": "scales",
                },
            ],
        },
        {
            "transform": [{"filter": "datum.kind == 'mean' || (datum.kind == 'seed' && showSeeds)"}],
            "mark": {"type": "point", "filled": True, "size": 120, "clip": True},
            "encoding": {
                "x": along,
                "y": up,
                "color": hue,
                "tooltip": tooltip,
                "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
            },
            "params": [{"name": "hover", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}],
        },
    ]


def _paper_points(encoding: Spec, reference: str) -> Spec:
    """Diamonds at the paper's values, on the axes and in the colours of another layer."""
    shared = {channel: encoding[channel] for channel in ("x", "y", "color")}
    tooltip = [{"field": "line"}, {"field": "value", "title": reference, "format": ".3f"}]
    return {
        "transform": [{"filter": "datum.kind == 'paper'"}],
        "mark": {"type": "point", "shape": "diamond", "size": 90, "strokeWidth": 2},
        "encoding": {**shared, "tooltip": tooltip, "opacity": _SHOWN},
    }


def _panels(view: Spec, layers: list[Spec], table: pd.DataFrame, facet: str) -> Spec:
    """A layered view as wide as its place, or one panel per value of a column."""
    height = view.pop("height")
    if not facet:
        return view | {"width": "container", "height": height, "layer": layers}
    panel = {"field": facet, "type": "nominal", "title": None, "sort": list(dict.fromkeys(table[facet]))}
    return view | {
        "facet": panel | {"header": {"labelFontWeight": 600}},
        "columns": 2,
        "spec": {"width": 320, "height": height, "layer": layers},
    }


def forest(name: str, caption: str, table: pd.DataFrame, *, x: str, facet: str = "") -> Chart:
    """A difference with its interval per row, and a line at zero.

    Args:
        name: of the downloads.
        caption: what is shown.
        table: columns `label`, `value`, `low`, `high`, `verdict` ("win", "tie", "loss" or "one seed"), `note` (hover
            text), and the facet.
        x: label of the axis.
        facet: column with one panel per value; "": one panel.
    """
    order = list(dict.fromkeys(table["label"]))
    row = {"field": "label", "type": "nominal", "title": None, "sort": order, "axis": {"labelLimit": 260}}
    scale = {"domain": list(VERDICTS), "range": list(VERDICTS.values())}
    hue = {"field": "verdict", "type": "nominal", "title": None, "scale": scale}
    shape = {
        "field": "verdict",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(_VERDICT_SHAPES), "range": list(_VERDICT_SHAPES.values())},
    }
    along = {"type": "quantitative", "title": x, "scale": {"padding": 12}, "axis": {"tickCount": _TICKS}}
    tooltip = [
        {"field": "label", "title": "comparison"},
        {"field": "value", "title": x, "format": "+.2f"},
        {"field": "low", "title": "low", "format": "+.2f"},
        {"field": "high", "title": "high", "format": "+.2f"},
        {"field": "note", "title": "result"},
    ]
    layers: list[Spec] = [
        {"data": {"values": [{"zero": 0}]}, "mark": {"type": "rule", "strokeDash": [3, 3]},
         "encoding": {"x": {"field": "zero", **along}}},
        {"mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {"x": {"field": "low", **along}, "x2": {"field": "high"}, "y": row, "color": hue}},
        {"mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
         "encoding": {"x": {"field": "value", **along}, "y": row, "color": hue, "shape": shape, "tooltip": tooltip}},
    ]  # fmt: skip
    return Chart(name, caption, _panels({"height": {"step": 24}}, layers, table, facet), table)


def intervals(
    name: str, caption: str, table: pd.DataFrame, *, x: str, strokes: Mapping[str, Stroke], facet: str = ""
) -> Chart:
    """A mean with its interval per row, and the paper's value as a diamond.

    Args:
        name: of the downloads.
        caption: what is shown.
        table: columns `line`, `value`, `low`, `high`, `paper` (nan: none), and the facet.
        x: label of the axis.
        strokes: by line.
        facet: column with one panel per value; "": one panel.
    """
    colour, _ = scales(strokes)
    row = {"field": "line", "type": "nominal", "title": None, "sort": list(strokes), "axis": {"labelLimit": 260}}
    hue = {"field": "line", "type": "nominal", "scale": colour, "legend": None}
    along = {"type": "quantitative", "title": x, "scale": {"zero": False, "padding": 12}, "axis": {"tickCount": _TICKS}}
    tooltip: list[Spec] = [{"field": "line", "title": "method"}]
    tooltip += [{"field": key, "title": key, "format": ".3f"} for key in ("value", "low", "high", "paper")]
    layers: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {"x": {"field": "low", **along}, "x2": {"field": "high"}, "y": row, "color": hue}},
        {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
         "encoding": {"x": {"field": "value", **along}, "y": row, "color": hue, "tooltip": tooltip}},
        {"transform": [{"filter": "isValid(datum.paper)"}],
         "mark": {"type": "point", "shape": "diamond", "size": 90, "strokeWidth": 2},
         "encoding": {"x": {"field": "paper", **along}, "y": row, "color": hue, "tooltip": tooltip}},
    ]  # fmt: skip
    return Chart(name, caption, _panels({"height": {"step": 24}}, layers, table, facet), table)
