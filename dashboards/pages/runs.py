"""Table of all runs: filtered and sorted by its address."""

from dataclasses import asdict, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.runs_table import COLUMNS, RunChoice, choose, run_rows
from dashboards.site import Site, fragment, part, version_of

FIRST_ROWS = 200
"""rows of a page; more on demand"""
_Name = Annotated[str, Query(max_length=200)]
_Order = Annotated[str, Query(pattern=f"^(-?({'|'.join(COLUMNS)}))?$")]
_MaxRows = Annotated[int, Query(ge=1, le=100_000)]


def _choice(pair: _Name = "", method: _Name = "", state: _Name = "", grid: _Name = "", order: _Order = "") -> RunChoice:
    return RunChoice(pair, method, state, grid, order)


_Choice = Annotated[RunChoice, Depends(_choice)]


def _address(choice: RunChoice, **more: int) -> str:
    """Parameters of the page's address; defaults are left out."""
    return urlencode({name: value for name, value in (asdict(choice) | more).items() if value})


def runs_routes(site: Site) -> APIRouter:
    """The page and its updates."""
    router = APIRouter()

    @router.get("/runs")
    def show(request: Request, choice: _Choice, most: _MaxRows = FIRST_ROWS) -> Response:
        context = _context(site, choice, most)
        return site.page(
            request,
            "runs/runs.html",
            table=fragment("runs/runs_table.html", **context),
            choice=choice,
            choices={
                **{name: sorted({row[name] for row in context["all_rows"]}) for name in ("pair", "method", "state")},
                "grid": [record.name for record in site.runs.grids()],
            },
        )

    @router.get("/runs/table")
    def table(choice: _Choice, most: _MaxRows = FIRST_ROWS, seen: str = "") -> Response:
        return part("runs/runs_table.html", _context(site, choice, most), seen)

    return router


def _context(site: Site, choice: RunChoice, max_rows: int) -> dict[str, Any]:
    """Template values for the table."""
    all_rows = run_rows(site.runs, site.scheduling.view(wait_s=0.2))
    members = site.runs.grid(choice.grid) if choice.grid else None
    rows = choose(all_rows, choice, {cell.experiment for cell in members.cells} if members else None)
    orders = {name: f"-{name}" if choice.order != f"-{name}" else name for name in COLUMNS}
    return {
        "all_rows": all_rows,
        "rows": rows[:max_rows],
        "num_found": len(rows),
        "order": choice.order,
        "addresses": {name: _address(replace(choice, order=order)) for name, order in orders.items()},
        "poll": _address(choice, most=max_rows),
        "more": _address(choice, most=10 * max_rows) if max_rows < len(rows) else "",
        "version": version_of(rows[:max_rows], len(rows), len(all_rows)),
    }
