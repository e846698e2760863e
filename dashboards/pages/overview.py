"""First page: a card per grid with its progress, its verdicts so far and its failures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.grids.cells import build_matrix
from dashboards.models.grids.failures import FailureGroup, failure_groups
from dashboards.models.grids.matrix import MatrixTotals
from dashboards.report.differences import ComparisonSection
from dashboards.site import Site, fragment, part, version_of
from flows.records.gridfile import GridRecord

FIRST_REPLY_S = 0.3


@dataclass(frozen=True, slots=True)
class Card:
    """A grid on the first page."""

    name: str
    title: str
    totals: MatrixTotals
    verdicts: ComparisonSection
    failures: tuple[FailureGroup, ...]


def overview_routes(site: Site) -> APIRouter:
    """The page and its updates."""
    router = APIRouter()

    @router.get("/")
    def show(request: Request) -> Response:
        return site.page(request, "overview/overview.html", overview=fragment("overview/cards.html", **_context(site)))

    @router.get("/overview")
    def changes(seen: str = "") -> Response:
        return part("overview/cards.html", _context(site), seen)

    return router


def _context(site: Site) -> dict[str, Any]:
    schedule = site.scheduling.view(wait_s=FIRST_REPLY_S)
    records = site.runs.grids()
    placed_names = {cell.experiment for record in records for cell in record.cells}
    num_others = sum(name not in placed_names for name in site.runs.names())
    cards = [_card(site, record) for record in records]
    context: dict[str, Any] = {
        "cards": cards,
        "num_others": num_others,
        "num_slots": schedule.num_slots,
        "notice": schedule.notice,
    }
    return context | {"version": version_of(context)}


def _card(site: Site, record: GridRecord) -> Card:
    status_of = cache(site.runs.status)  # read once for a request
    matrix = build_matrix(record, status_of, site.scheduling.view())
    return Card(
        record.name,
        record.title,
        matrix.totals,
        site.comparisons.of(record, status_of).verdicts,
        tuple(failure_groups(matrix.experiments)),
    )
