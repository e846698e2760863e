"""Page that compares a grid's methods on one pair: verdict, curves, table; downloads of the charts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from dashboards.charts.charts import Chart
from dashboards.models.grids.comparison import Comparer, PairTable
from dashboards.models.grids.comparison_charts import (
    COSTS,
    curves_chart,
    results_chart,
    time_label,
)
from dashboards.models.grids.verdicts import GridVerdicts
from dashboards.models.listing import ALL_RUNS, UnknownError
from dashboards.report.cells import Variant
from dashboards.report.compared import TOGETHER, forest
from dashboards.report.published import AVERAGE
from dashboards.site import FILE_KINDS, Site, chart_response, part, version_of

_CostUnit = Literal["tokens", "time", "steps"]
_Charts = Literal["verdict", "curves", "results"]
_DEFAULT_COST: _CostUnit = "tokens"


@dataclass(frozen=True, slots=True)
class Selection:
    """The comparison that a request selects; all its names exist in the grid."""

    comparer: Comparer
    comparison: PairTable
    verdicts: GridVerdicts
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
    def column(self) -> int:
        """The selected benchmark's column, or else the last: the average, or the only one."""
        columns = self.comparison.columns
        return columns.index(self.benchmark) if self.benchmark in columns else len(columns) - 1

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """What curves average: the selected benchmark, or all of the comparison."""
        return self.comparison.benchmarks if self.benchmark == AVERAGE else (self.benchmark,)


def _selected(
    request: Request, grid: str = "", pair: str = "", benchmark: str = "", agent: str = ""
) -> Selection | None:
    site: Site = request.app.state.site
    grids = site.runs.grids()
    record = site.runs.grid(grid or (grids[0].name if grids else ALL_RUNS))
    pairs = tuple(dict.fromkeys(cell.pair for cell in record.cells))
    if not pairs and not pair:
        return None
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
    def show(request: Request, selection: _Selected, cost: _CostUnit = _DEFAULT_COST) -> Response:
        return site.page(request, "compare/compare.html", **_context(site, selection, cost))

    @router.get("/compare/changes")
    def changes(selection: _Selected, cost: _CostUnit = _DEFAULT_COST, seen: str = "") -> Response:
        if selection is None:
            return Response(status_code=204)
        return part("compare/results.html", _context(site, selection, cost), seen)

    @router.get("/compare/{chart}.{kind}")
    def draw(
        chart: _Charts,
        kind: FILE_KINDS,
        selection: _Selected,
        cost: _CostUnit = _DEFAULT_COST,
        seen: str = "",
    ) -> Response:
        picture = _chart(selection, chart, cost) if selection is not None else None
        return chart_response(picture, kind, seen)

    return router


def _chart(selection: Selection, chart: _Charts, cost: _CostUnit) -> Chart | None:
    comparer, comparison = selection.comparer, selection.comparison
    if not comparison.columns:
        return None
    if chart == "verdict":
        return forest("verdict", "", [row for row in selection.verdicts.rows if row.pair == comparison.pair])
    if chart == "results":
        return results_chart(comparison, selection.column)
    paper_values, benchmarks = _paper_values(selection), selection.benchmarks
    return curves_chart(comparer, comparison, selection.agents, benchmarks, cost, paper_values)


def _context(site: Site, selection: Selection | None, cost: _CostUnit) -> dict[str, Any]:
    """Values for the templates; without a selection the grid is empty."""
    comparison = selection.comparison if selection is not None else None
    return {
        "grids": site.runs.chooser(),
        "pairs": selection.pairs if selection is not None else (),
        "benchmarks": selection.choices if selection is not None else (),
        "benchmark": selection.benchmark if selection is not None else "",
        "agent": TOGETHER if selection is None or len(selection.agents) != 1 else selection.agents[0],
        "together": TOGETHER,
        "cost": cost,
        "costs": COSTS | ({"time": time_label(comparison)} if comparison is not None else {}),
        "comparison": comparison,
        "version": version_of(comparison),
    }


def _paper_values(selection: Selection) -> dict[Variant, float]:
    """The paper's values for the selected agent; empty for several agents, for which it has none."""
    if selection.benchmark not in selection.comparison.columns:
        return {}
    lines = [line for line in selection.comparison.lines if (line.agent,) == selection.agents]
    return {line.variant: value for line in lines if (value := line.figures[selection.column].paper) is not None}
