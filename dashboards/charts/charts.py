"""Charts in Altair over one table each: a browser draws their Vega-Lite, or `pictures` does.

A chart's table is what its CSV holds. `options` are what a reader may change: `seeds` (show single seeds), `smooth`,
`log_x`, `log_y`. A builder writes the specification in its unchanged state; `charts.js` changes it in the browser.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from dashboards.charts.palette import Stroke

Spec = dict[str, Any]
_TABLE = alt.NamedData(name="table")
"""stands for a chart's table, which `Chart.vega_lite` puts in its place"""
_TICKS = 6
"""about how many numbers are along an axis"""
VERDICTS = {
    "win": ("#00875f", "triangle-right"),
    "tie": ("#767b80", "circle"),
    "loss": ("#c6402f", "triangle-left"),
    "one seed": ("#767b80", "square"),
}


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
        return {**self.spec, "data": {"values": rows}, "usermeta": {"options": list(self.options)}}

    def csv(self) -> str:
        """The table as CSV; names that a spreadsheet would read as a formula are quoted."""
        table = self.table.map(lambda value: f"'{value}" if str(value)[:1] in ("=", "+", "@") else value)
        return str(table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value


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
    line: str = "method",
    shares_y: bool = True,
) -> Chart:
    """Lines with a band each, and single seeds on demand.

    Args:
        name: of the downloads.
        caption: what is shown.
        table: columns `line`, `kind` ("mean" or "seed"), `seed`, `x`, `value`, `low`, `high` (nan: no band), and
            the facet.
        x: label of the axis.
        y: label of the axis.
        strokes: by line, in the order of the legend.
        facet: column with one panel per value; "": one panel.
        smooth: number of points of the running mean that is shown at first.
        line: what a line is, for the hover text.
        shares_y: whether all panels have the same y axis.
    """
    layers = _curve_layers(x, y, strokes, line, shares_y=shares_y)
    layered = alt.layer(*layers).transform_window(
        value="mean(value)",
        low="mean(low)",
        high="mean(high)",
        frame=[1 - smooth, 0],
        groupby=["line", "kind", "seed", *([facet] if facet else [])],
        sort=[alt.SortField("x")],
    )
    spec = _panels(layered, table, facet, height=260 if shares_y else 160)
    if not shares_y:
        spec["resolve"] = {"scale": {"y": "independent"}}
    spec["params"] = [{"name": "showSeeds", "value": False}, *spec.get("params", [])]
    options = ["smooth", "log_x", "log_y"]
    return Chart(name, caption, spec, table, ("seeds", *options) if (table["kind"] == "seed").any() else (*options,))


def _curve_layers(x: str, y: str, strokes: Mapping[str, Stroke], line: str, *, shares_y: bool) -> list[alt.Chart]:
    """Bands, single seeds, means, and the points that show what the pointer is at."""
    lines = list(strokes)
    legend = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)
    colours = alt.Scale(domain=lines, range=[stroke.colour for stroke in strokes.values()])
    dashes = alt.Scale(domain=lines, range=[list(stroke.dash) for stroke in strokes.values()])
    up: dict[str, Any] = {"title": y, "scale": alt.Scale(zero=False), "axis": alt.Axis(format=".4~g")}
    toggle = alt.selection_point(name="toggle", fields=["line"], bind="legend")
    zoom = alt.selection_interval(
        name="zoom",
        bind="scales",
        encodings=["x", "y"] if shares_y else ["x"],
        zoom="wheel![event.ctrlKey]",
        clear="dblclick",
    )
    hover = alt.selection_point(name="hover", on="pointerover", clear="pointerout", empty=False)
    is_shown = alt.condition(toggle, alt.value(1), alt.value(0.07))  # a line that is switched off stays as a trace
    band = alt.condition(toggle, alt.value(1), alt.value(0.1))
    tooltip = [alt.Tooltip("line:N", title=line), alt.Tooltip("seed:N"), alt.Tooltip("x:Q", title=x, format=",.4~s")]
    tooltip += [alt.Tooltip(f"{name}:Q", title=y if name == "value" else name, format=".4~g") for name in _ENDS]
    base = alt.Chart(_TABLE).encode(
        alt.X("x:Q", title=x).scale(nice=False, zero=False).axis(format="~s", labelOverlap=True, tickCount=_TICKS),
        alt.Y("value:Q", **up),
        alt.Color("line:N", title=None, scale=colours, legend=legend),
    )
    means = base.transform_filter("datum.kind == 'mean'")
    return [
        means.transform_filter("isValid(datum.low)")
        .mark_area(opacity=0.15, clip=True)
        .encode(alt.Y("low:Q", **up), alt.Y2("high:Q"), fillOpacity=band),
        base.transform_filter("datum.kind == 'seed' && showSeeds")
        .mark_line(strokeWidth=0.8, clip=True)
        .encode(detail="seed:N", opacity=is_shown),
        means.mark_line(strokeWidth=2, clip=True)
        .encode(alt.StrokeDash("line:N", title=None, scale=dashes, legend=legend), opacity=is_shown)
        .add_params(toggle, zoom),
        base.transform_filter("datum.kind == 'mean' || (datum.kind == 'seed' && showSeeds)")
        .mark_point(filled=True, size=120, clip=True)
        .encode(tooltip=tooltip, opacity=alt.condition(hover, alt.value(1), alt.value(0)))
        .add_params(hover),
    ]


_ENDS = ("value", "low", "high")


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
    colours, shapes = (list(column) for column in zip(*VERDICTS.values(), strict=True))
    hue = alt.Color("verdict:N", title=None, scale=alt.Scale(domain=list(VERDICTS), range=colours))
    shape = alt.Shape("verdict:N", title=None, scale=alt.Scale(domain=list(VERDICTS), range=shapes))
    tooltip = [alt.Tooltip("label:N", title="comparison"), alt.Tooltip("note:N", title="result")]
    zero = alt.Chart(_TABLE).mark_rule(strokeDash=[3, 3]).encode(x=alt.datum(0))
    along: dict[str, Any] = {"title": x, "scale": alt.Scale(zero=False, padding=12), "axis": alt.Axis(tickCount=_TICKS)}
    label = alt.Y("label:N", title=None, sort=list(dict.fromkeys(table["label"]))).axis(labelLimit=260)
    base, points = alt.Chart(_TABLE).encode(label, hue), alt.X("value:Q", **along)
    layers = [
        zero,
        base.mark_rule(strokeWidth=2).encode(alt.X("low:Q", **along), alt.X2("high:Q")),
        base.mark_point(filled=True, size=110, opacity=1).encode(points, tooltip=tooltip, shape=shape),
    ]
    return Chart(name, caption, _panels(alt.layer(*layers), table, facet, height=alt.Step(24)), table)


def _panels(layered: Any, table: pd.DataFrame, facet: str, *, height: int | alt.Step) -> Spec:
    """Layers as wide as their place, or one panel per value of a column."""
    chart = layered.properties(width=320 if facet else "container", height=height)
    if facet:
        panel = alt.Facet(f"{facet}:N", title=None, sort=list(dict.fromkeys(table[facet])))
        chart = chart.properties(data=_TABLE).facet(panel.header(labelFontWeight=600), columns=2)
    spec: Spec = chart.to_dict()
    del spec["config"]  # the page and `pictures` have their own
    return spec
