"""Comparison of a grid's methods on one pair: table, pictures, downloads."""

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
class Asked:
    """What an address asks for; every name in it was found in the grid."""

    comparer: Comparer
    found: Comparison
    pairs: tuple[str, ...]
    """of the grid"""
    column: int
    agents: tuple[str, ...]

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The chosen benchmark, or all that count."""
        name = self.found.columns[self.column]
        return (name,) if name in self.found.benchmarks else self.found.benchmarks


def _asked(request: Request, grid: str = "", pair: str = "", benchmark: str = "", agent: str = "") -> Asked | None:
    site: Site = request.app.state.site
    grids = site.runs.grids()
    record = site.runs.grid(grid or (grids[0].name if grids else ALL_RUNS))
    pairs = tuple(dict.fromkeys(place.pair for place in record.places))
    if not pairs and not pair:
        return None
    if pair and pair not in pairs:
        raise UnknownError(f"the grid {record.name} has no pair {pair!r}")
    comparer = Comparer(record, pair or pairs[0], site.runs.standing)
    found = comparer.comparison()
    if benchmark and benchmark not in found.columns:
        raise UnknownError(f"nothing was evaluated on {benchmark!r} yet")
    if agent and agent not in (TOGETHER, *found.agents):
        raise UnknownError(f"the pair {found.pair} has no agent {agent!r}")
    column = found.columns.index(benchmark) if benchmark else max(len(found.columns) - 1, 0)
    agents = (agent,) if agent and agent != TOGETHER else found.agents
    return Asked(comparer, found, pairs, column, agents)


Question = Annotated[Asked | None, Depends(_asked)]


def compare_routes(site: Site) -> APIRouter:
    """The page and what it shows."""
    router = APIRouter()

    @router.get("/compare")
    def show(request: Request, question: Question, cost: _CostUnit = "tokens") -> Response:
        return site.page(request, "compare.html", **_shown(site, question, cost))

    @router.get("/compare/changes")
    def changes(question: Question, cost: _CostUnit = "tokens", seen: str = "") -> Response:
        return part("results.html", _shown(site, question, cost, seen), seen)

    @router.get("/compare/table.csv")
    def table(question: Question) -> Response:
        asked = _needed(question)
        return _download(as_csv(asked.found), "text/csv; charset=utf-8", "comparison.csv")

    @router.get("/compare/results.svg")
    def results(question: Question, scheme: Scheme = "light", download: bool = False) -> Response:
        asked = _needed(question)
        svg = results_svg(asked.found, column=asked.column, scheme=scheme)
        return _picture(svg, "results.svg" if download else "")

    @router.get("/compare/curves.svg")
    def curves(
        question: Question, cost: _CostUnit = "tokens", scheme: Scheme = "light", download: bool = False
    ) -> Response:
        asked = _needed(question)
        points = {
            variant: asked.comparer.curve(variant, asked.agents, asked.benchmarks) for variant in asked.found.variants
        }
        svg = curves_svg(asked.found, points, cost=cost, printed=_printed(asked), scheme=scheme)
        return _picture(svg, "curves.svg" if download else "")

    return router


def _shown(site: Site, question: Asked | None, cost: _CostUnit, seen: str | None = None) -> dict[str, Any]:
    """What the page shows; its version is of the choices that it offers, and of what was measured.

    Args:
        seen: version of a browser whose choices are sent again where they are others; None: they are on the page.
    """
    found = question.found if question is not None else None
    choices: dict[str, Any] = {
        "grids": site.runs.chooser(),
        "pairs": question.pairs if question is not None else (),
        "column": question.column if question is not None else 0,
        "agent": TOGETHER if question is None or len(question.agents) != 1 else question.agents[0],
        "together": TOGETHER,
        "cost": cost,
        "costs": COST_LABELS | ({"hours": hours_label(found)} if found is not None else {}),
    }
    names = version_of(choices, (found.columns, found.agents) if found is not None else ())
    extent = question.comparer.extent() if question is not None else []
    is_choice_new = seen is not None and seen.partition(".")[0] != names
    return choices | {
        "found": found,
        "version": f"{names}.{version_of(found, extent)}",
        "is_choice_new": is_choice_new,
    }


def _needed(question: Asked | None) -> Asked:
    if question is None or not question.found.columns:
        raise UnknownError("nothing was evaluated yet")
    return question


def _printed(asked: Asked) -> dict[Variant, float]:
    """The paper's values of the shown agent; of several agents it prints no common one."""
    lines = [line for line in asked.found.lines if (line.agent,) == asked.agents]
    return {line.variant: value for line in lines if (value := line.figures[asked.column].printed) is not None}


def _picture(svg: str, name: str) -> Response:
    response = _download(svg, "image/svg+xml", name)
    response.headers["content-security-policy"] = PICTURE_CSP
    return response


def _download(text: str, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="hacpo_{name}"'} if name else {}
    return Response(text, media_type=kind, headers=headers)
