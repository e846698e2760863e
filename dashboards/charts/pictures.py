"""Charts as SVG, drawn without a browser and without the network."""

import re
from typing import Any

import vl_convert

from dashboards.charts.charts import Chart, Spec

_VEGA_LITE = "6.4"
_INK, _FAINT, _LINE = "#1c2126", "#4d5761", "#c9d0d7"
_WIDTH = 640
_CONFIG: dict[str, Any] = {
    "background": "#ffffff",
    "font": "sans-serif",
    "view": {"stroke": _LINE},
    "axis": {
        "labelColor": _FAINT,
        "titleColor": _INK,
        "gridColor": _LINE,
        "gridOpacity": 0.6,
        "domainColor": _LINE,
        "tickColor": _LINE,
        "titleFontWeight": 500,
    },
    "legend": {"labelColor": _INK, "orient": "top", "columns": 4, "labelLimit": 240},
    "header": {"labelColor": _INK},
    "rule": {"color": _FAINT},
    "text": {"color": _FAINT},
}


def svg(chart: Chart) -> str:
    """The chart as an SVG element, the same at every call."""
    text = str(vl_convert.vegalite_to_svg(_still(chart), vl_version=_VEGA_LITE, config=_CONFIG))
    numbers: dict[str, int] = {}  # Vega counts its clip paths over all drawings of a process
    return re.sub(
        r'(id="|url\(#)clip(\d+)', lambda match: f"{match[1]}clip{numbers.setdefault(match[2], len(numbers))}", text
    )


def _still(chart: Chart) -> Spec:
    """The specification with a width of its own: outside a browser nothing contains it."""
    spec = chart.vega_lite()
    return spec | {"width": _WIDTH} if spec.get("width") == "container" else spec
