"""Page that compares a grid's methods on one pair: table, figures, downloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.changes import version_of
from dashboards.models.comparison import TOGETHER, Comparer, Comparison, as_csv
from dashboards.models.listing import ALL_RUNS, UnknownError
from dashboards.pictures import COST_LABELS, curves_svg, hours_label, results_svg
from dashboards.security import PICTURE_CSP
from dashboards.site import Site, part
from experiments.report.cells import Variant

Scheme = Literal["light", "dark"]
_CostUnit = Literal["tokens", "hours"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The comparison that a request selects; all its names exist in the grid."""

    comparer: Comparer
    comparison: Comparison
    pairs: tuple[str, ...]
    """all pairs of the grid"""
    column: int
    agents: tuple[str, ...]

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The selected benchmark, or all of the comparison."""
        name = self.comparison.columns[self.column]
        return (name,) if name in self.comparison.benchmarks else self.comparison.benchmarks


def _selected(
    request: Request, grid: str = "", pair: str = "", benchmark: str = "", agent: str = ""
) -> Selection | None:
    site: Site = request.app.state.site
    grids = site.runs.grids()
    record = site.runs.grid(grid or (grids[0].name if grids else ALL_RUNS))
    pairs = tuple(dict.fromkeys(place.pair for place in record.places))
    if not pairs and not pair:
        return None
    if pair and pair not in pairs:
        raise UnknownError(f"the grid {record.name} has no pair {pair!r}")
    comparer = Comparer(record, pair or pairs[0], site.runs.standing)
    comparison = comparer.comparison()
    if benchmark and benchmark not in comparison.columns:
        raise UnknownError(f"nothing has been evaluated on {benchmark!r} yet")
    if agent and agent not in (TOGETHER, *comparison.agents):
        raise UnknownError(f"the pair {comparison.pair} has no agent {agent!r}")
    column = comparison.columns.index(benchmark) if benchmark else max(len(comparison.columns) - 1, 0)
    agents = (agent,) if agent and agent != TOGETHER else comparison.agents
    return Selection(comparer, comparison, pairs, column, agents)


_Selected = Annotated[Selection | None, Depends(_selected)]


def compare_routes(site: Site) -> APIRouter:
    """The page, its updates and its downloads."""
    router = APIRouter()

    @router.get("/compare")
    def show(request: Request, selection: _Selected, cost: _CostUnit = "tokens") -> Response:
        return site.page(request, "compare.html", **_context(site, selection, cost))

    @router.get("/compare/changes")
    def changes(selection: _Selected, cost: _CostUnit = "tokens", seen: str = "") -> Response:
        return part("results.html", _context(site, selection, cost, seen), seen)

    @router.get("/compare/table.csv")
    def table(selection: _Selected) -> Response:
        return _download(as_csv(_not_empty(selection).comparison), "text/csv; charset=utf-8", "comparison.csv")

    @router.get("/compare/results.svg")
    def results(selection: _Selected, scheme: Scheme = "light", download: bool = False) -> Response:
        chosen = _not_empty(selection)
        svg = results_svg(chosen.comparison, column=chosen.column, scheme=scheme)
        return _picture(svg, "results.svg" if download else "")

    @router.get("/compare/curves.svg")
    def curves(
        selection: _Selected, cost: _CostUnit = "tokens", scheme: Scheme = "light", download: bool = False
    ) -> Response:
        chosen = _not_empty(selection)
        points = {
            variant: chosen.comparer.curve(variant, chosen.agents, chosen.benchmarks)
            for variant in chosen.comparison.variants
        }
        svg = curves_svg(chosen.comparison, points, cost=cost, printed=_printed(chosen), scheme=scheme)
        return _picture(svg, "curves.svg" if download else "")

    return router


def _context(site: Site, selection: Selection | None, cost: _CostUnit, seen: str | None = None) -> dict[str, Any]:
    """Values for the templates. The version has two parts, for the choices and for the results.

    Args:
        site: readers.
        selection: None if the grid is empty.
        cost: key of COST_LABELS.
        seen: version that the browser has, whose choices are sent again if they have changed; None: a whole page.
    """
    comparison = selection.comparison if selection is not None else None
    choices: dict[str, Any] = {
        "grids": site.runs.chooser(),
        "pairs": selection.pairs if selection is not None else (),
        "column": selection.column if selection is not None else 0,
        "agent": TOGETHER if selection is None or len(selection.agents) != 1 else selection.agents[0],
        "together": TOGETHER,
        "cost": cost,
        "costs": COST_LABELS | ({"hours": hours_label(comparison)} if comparison is not None else {}),
    }
    names = version_of(choices, (comparison.columns, comparison.agents) if comparison is not None else ())
    extent = selection.comparer.extent() if selection is not None else []
    is_choice_new = seen is not None and seen.partition(".")[0] != names
    return choices | {
        "comparison": comparison,
        "version": f"{names}.{version_of(comparison, extent)}",
        "is_choice_new": is_choice_new,
    }


def _not_empty(selection: Selection | None) -> Selection:
    if selection is None or not selection.comparison.columns:
        raise UnknownError("nothing has been evaluated yet")
    return selection


def _printed(selection: Selection) -> dict[Variant, float]:
    """The paper's values for the selected agent; empty for several agents, for which it has none."""
    lines = [line for line in selection.comparison.lines if (line.agent,) == selection.agents]
    return {line.variant: value for line in lines if (value := line.figures[selection.column].printed) is not None}


def _picture(svg: str, name: str) -> Response:
    response = _download(svg, "image/svg+xml", name)
    response.headers["content-security-policy"] = PICTURE_CSP
    return response


def _download(text: str, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="hacpo_{name}"'} if name else {}
    return Response(text, media_type=kind, headers=headers)
