"""How pages and reports look: a style sheet, a palette, and charts in Vega-Lite."""

from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
"""`design.css`, `charts.js` and the vendored libraries, served by the dashboard and written into reports"""
CHART_SCRIPTS = (
    "vendor/vega.min.js",
    "vendor/vega-lite.min.js",
    "vendor/vega-embed.min.js",
    "vendor/vega-interpreter.js",
    "charts.js",
)
"""scripts that draw charts, in loading order"""
