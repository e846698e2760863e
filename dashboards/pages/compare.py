"""Page that compares a grid's methods on one pair: verdict, curves, table, configuration; downloads of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from dashboards.charts.charts import Chart
from dashboards.models.changes import version_of
from dashboards.models.grids.comparison import TOGETHER, Comparer, Comparison
from dashboards.models.grids.comparison_charts import (
    COSTS,
    curves_chart,
    parallel_chart,
    results_chart,
    time_label,
    verdict_chart,
)
from dashboards.models.grids.comparison_csv import as_csv
from dashboards.models.grids.verdicts import GridVerdicts
from dashboards.models.listing import ALL_RUNS, UnknownError
from dashboards.models.runs.settings import ABSENT, read_field_values
from dashboards.report.cells import Variant
from dashboards.report.published import AVERAGE
from dashboards.site import FILE_KINDS, Site, chart_response, part

_CostUnit = Literal["tokens", "time", "steps"]
_Charts = Literal["verdict", "curves", "results", "parallel"]
_DEFAULT_COST: _CostUnit = "tokens"


@dataclass(frozen=True, slots=True)
class Selection:
    """The comparison that a request selects; all its names exist in the grid."""

    comparer: Comparer
    comparison: Comparison
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
    def changes(selection: _Selected, cost: _CostUnit = _DEFAULT_COST, grid: str = "", seen: str = "") -> Response:
        if selection is not None and not grid:  # the page was opened before there was anything to compare
            return Response(status_code=204, headers={"HX-Refresh": "true"})
        return part("compare/results.html", _context(site, selection, cost, seen), seen)

    @router.get("/compare/table.csv")
    def table(selection: _Selected) -> Response:
        if selection is None or not selection.comparison.columns:
            raise UnknownError("nothing has been evaluated yet")
        headers = {"content-disposition": 'attachment; filename="hacpo_comparison.csv"'}
        return Response(as_csv(selection.comparison), media_type="text/csv; charset=utf-8", headers=headers)

    @router.get("/compare/{chart}.{kind}")
    def draw(
        chart: _Charts,
        kind: FILE_KINDS,
        selection: _Selected,
        cost: _CostUnit = _DEFAULT_COST,
        seen: str = "",
        seeds: bool = False,
    ) -> Response:
        has_seeds = seeds or kind != "json"
        picture = _chart(site, selection, chart, cost, has_seeds) if selection is not None else None
        return chart_response(picture, kind, seen)

    return router


def _chart(site: Site, selection: Selection, chart: _Charts, cost: _CostUnit, has_seeds: bool) -> Chart | None:
    comparer, comparison = selection.comparer, selection.comparison
    if not comparison.columns:
        return None
    if chart == "verdict":
        return verdict_chart(selection.verdicts, comparison.pair)
    if chart == "results":
        return results_chart(comparison, selection.column)
    if chart == "parallel":
        return parallel_chart(comparer, comparison, _fields(site, selection))
    paper_values, benchmarks = _paper_values(selection), selection.benchmarks
    return curves_chart(comparer, comparison, selection.agents, benchmarks, cost, paper_values, has_seeds=has_seeds)


def _fields(site: Site, selection: Selection) -> dict[Variant, dict[str, str]]:
    """Fields in which the methods' configurations differ, apart from their agents and seeds."""
    examples = selection.comparer.examples()
    names_of_runs = set(site.runs.names())
    values = {
        variant: read_field_values(site.runs.root(name)) for variant, name in examples.items() if name in names_of_runs
    }
    names = dict.fromkeys(name for method_fields in values.values() for name in method_fields)
    differing_names = [
        name
        for name in names
        if not name.startswith("pair.")
        and name not in ("seed", "method.name")
        and len({method_fields.get(name, ABSENT) for method_fields in values.values()}) > 1
    ]
    return {
        variant: {name: method_fields[name] for name in differing_names if name in method_fields}
        for variant in selection.comparison.variants
        if (method_fields := values.get(variant)) is not None
    }


def _context(site: Site, selection: Selection | None, cost: _CostUnit, seen: str | None = None) -> dict[str, Any]:
    """Values for the templates. The version has two parts, for the choices and for the results.

    Args:
        site: readers.
        selection: None if the grid is empty.
        cost: key of COSTS.
        seen: version that the browser has, whose choices are sent again if they have changed; None: a whole page.
    """
    comparison = selection.comparison if selection is not None else None
    choices: dict[str, Any] = {
        "grids": site.runs.chooser(),
        "pairs": selection.pairs if selection is not None else (),
        "benchmarks": selection.choices if selection is not None else (),
        "benchmark": selection.benchmark if selection is not None else "",
        "agent": TOGETHER if selection is None or len(selection.agents) != 1 else selection.agents[0],
        "together": TOGETHER,
        "cost": cost,
        "costs": COSTS | ({"time": time_label(comparison)} if comparison is not None else {}),
    }
    names = version_of(choices, comparison.agents if comparison is not None else ())
    is_choice_new = seen is not None and seen.partition(".")[0] != names
    fields = _fields(site, selection) if selection is not None else {}
    results = {
        "comparison": comparison,
        "verdicts": selection.verdicts if selection is not None else GridVerdicts(None),
    }
    return (
        choices
        | results
        | {
            "fields": fields,
            "field_names": list(dict.fromkeys(name for method_fields in fields.values() for name in method_fields)),
            "version": f"{names}.{version_of(results, fields)}",
            "is_choice_new": is_choice_new,
        }
    )


def _paper_values(selection: Selection) -> dict[Variant, float]:
    """The paper's values for the selected agent; empty for several agents, for which it has none."""
    if selection.benchmark not in selection.comparison.columns:
        return {}
    lines = [line for line in selection.comparison.lines if (line.agent,) == selection.agents]
    return {line.variant: value for line in lines if (value := line.figures[selection.column].paper) is not None}
