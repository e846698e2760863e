"""Page that compares a grid's methods on one pair: verdict, curves, table; downloads of the charts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from dashboards.charts.charts import Chart
from dashboards.models.listing import UnknownError
from dashboards.report.compared import forest
from dashboards.report.comparison import Comparer
from dashboards.report.curves import accuracy_curves
from dashboards.report.differences import ComparisonSection
from dashboards.site import FILE_KINDS, Site, chart_response, part, version_of

_Charts = Literal["verdict", "curves"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The comparison that a request selects; all its names exist in the grid."""

    comparer: Comparer
    verdicts: ComparisonSection
    pairs: tuple[str, ...]
    """all pairs of the grid"""
    benchmark: str
    """of the curves: a column, or one that the grid does not compare; "" before the first evaluation"""


def _selected(request: Request, grid: str = "", pair: str = "", benchmark: str = "") -> Selection | None:
    site: Site = request.app.state.site
    grids = site.runs.grids()
    if not grids and not grid:
        return None
    record = site.runs.grid(grid or grids[0].name)
    of_grid = site.comparisons.of(record, cache(site.runs.status))
    pairs = tuple(of_grid.comparers)
    if pair and pair not in pairs:
        raise UnknownError(f"the grid {record.name} has no pair {pair!r}")
    comparer = of_grid.comparers[pair or pairs[0]]
    if benchmark and benchmark not in comparer.choices:
        raise UnknownError(f"nothing has been evaluated on {benchmark!r} yet")
    return Selection(comparer, of_grid.verdicts, pairs, benchmark or comparer.default_benchmark)


_Selected = Annotated[Selection | None, Depends(_selected)]


def compare_routes(site: Site) -> APIRouter:
    """The page, its updates and its downloads."""
    router = APIRouter()

    @router.get("/compare")
    def show(request: Request, selection: _Selected) -> Response:
        return site.page(request, "compare/compare.html", **_context(site, selection))

    @router.get("/compare/changes")
    def changes(selection: _Selected, seen: str = "") -> Response:
        if selection is None:
            return Response(status_code=204)
        return part("compare/results.html", _context(site, selection), seen)

    @router.get("/compare/{chart}.{kind}")
    def draw(
        chart: _Charts,
        kind: FILE_KINDS,
        selection: _Selected,
        seen: str = "",
    ) -> Response:
        picture = _chart(selection, chart) if selection is not None else None
        return chart_response(picture, kind, seen)

    return router


def _chart(selection: Selection, chart: _Charts) -> Chart | None:
    comparer = selection.comparer
    if chart == "curves":
        return accuracy_curves(comparer, selection.benchmark)
    return forest("verdict", "", [row for row in selection.verdicts.rows if row.pair == comparer.pair])


def _context(site: Site, selection: Selection | None) -> dict[str, Any]:
    """Values for the templates; without a selection there is no grid."""
    if selection is None:
        return {"comparison": None}
    comparer, benchmark = selection.comparer, selection.benchmark
    names = {"grid": comparer.record.name, "pair": comparer.pair, "benchmark": benchmark}
    return {
        "grids": [(record.name, record.title) for record in site.runs.grids()],
        "pairs": selection.pairs,
        "benchmarks": comparer.choices,
        "benchmark": benchmark,
        "query": urlencode({name: value for name, value in names.items() if value}),
        "comparison": comparer,
        "version": version_of(comparer.pair, comparer.columns, comparer.lines),
    }
