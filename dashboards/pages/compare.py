"""Page that compares a grid's methods on one pair: verdict, curves, table; downloads of the charts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from dashboards.charts.charts import Chart
from dashboards.models.grids.comparison_charts import curves_chart
from dashboards.models.listing import UnknownError
from dashboards.report.compared import TOGETHER, forest
from dashboards.report.comparison import Comparer, PairTable, paper_values_of
from dashboards.report.differences import ComparisonSection
from dashboards.report.published import AVERAGE
from dashboards.site import FILE_KINDS, Site, chart_response, part, version_of

_Charts = Literal["verdict", "curves"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The comparison that a request selects; all its names exist in the grid."""

    comparer: Comparer
    comparison: PairTable
    verdicts: ComparisonSection
    pairs: tuple[str, ...]
    """all pairs of the grid"""
    benchmark: str
    """of the curves: a column, or one that the grid does not compare; "" before the first evaluation"""
    agents: tuple[str, ...]

    @property
    def choices(self) -> tuple[str, ...]:
        """Benchmarks that curves can show."""
        return (*self.comparison.columns, *self.comparer.others)

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """What curves average: the selected benchmark, or all of the comparison."""
        return self.comparison.benchmarks if self.benchmark == AVERAGE else (self.benchmark,)


def _selected(
    request: Request, grid: str = "", pair: str = "", benchmark: str = "", agent: str = ""
) -> Selection | None:
    site: Site = request.app.state.site
    grids = site.runs.grids()
    if not grids and not grid:
        return None
    record = site.runs.grid(grid or grids[0].name)
    pairs = tuple(dict.fromkeys(cell.pair for cell in record.cells))
    if pair and pair not in pairs:
        raise UnknownError(f"the grid {record.name} has no pair {pair!r}")
    comparison_of_grid = site.comparisons.of(record, cache(site.runs.status))
    comparer = comparison_of_grid.comparers[pair or pairs[0]]
    comparison = comparer.comparison
    if benchmark and benchmark not in (*comparison.columns, *comparer.others):
        raise UnknownError(f"nothing has been evaluated on {benchmark!r} yet")
    if agent and agent not in (TOGETHER, *comparison.agents):
        raise UnknownError(f"the pair {comparison.pair} has no agent {agent!r}")
    agents = (agent,) if agent and agent != TOGETHER else comparison.agents
    return Selection(
        comparer, comparison, comparison_of_grid.verdicts, pairs, benchmark or comparer.default_benchmark, agents
    )


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
    comparer, comparison = selection.comparer, selection.comparison
    if not comparison.columns:
        return None
    if chart == "verdict":
        return forest("verdict", "", [row for row in selection.verdicts.rows if row.pair == comparison.pair])
    agent = selection.agents[0] if len(selection.agents) == 1 else ""
    paper_values, benchmarks = paper_values_of(comparison, agent, selection.benchmark), selection.benchmarks
    return curves_chart(comparer, comparison, selection.agents, benchmarks, paper_values)


def _context(site: Site, selection: Selection | None) -> dict[str, Any]:
    """Values for the templates; without a selection the grid is empty."""
    comparison = selection.comparison if selection is not None else None
    return {
        "grids": [(record.name, record.title) for record in site.runs.grids()],
        "pairs": selection.pairs if selection is not None else (),
        "benchmarks": selection.choices if selection is not None else (),
        "benchmark": selection.benchmark if selection is not None else "",
        "agent": TOGETHER if selection is None or len(selection.agents) != 1 else selection.agents[0],
        "together": TOGETHER,
        "comparison": comparison,
        "version": version_of(comparison),
    }
