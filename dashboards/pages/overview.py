"""First page: a card per grid with its progress, its verdicts so far and its failures."""

from functools import cache
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.grids.matrix import build_matrix
from dashboards.pages.grid import FIRST_REPLY_S
from dashboards.site import Site, fragment, part, version_of
from flows.records.gridfile import GridRecord


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

    def card(record: GridRecord) -> dict[str, Any]:
        status_of = cache(site.runs.status)  # read once for a request
        verdicts = site.comparisons.of(record, status_of).verdicts
        return {"matrix": build_matrix(record, status_of, schedule), "verdicts": verdicts}

    context: dict[str, Any] = {
        "cards": list(map(card, records)),
        "num_others": sum(name not in placed_names for name in site.runs.names()),
        "num_slots": schedule.num_slots,
        "notice": schedule.notice,
    }
    return context | {"version": version_of(context)}
