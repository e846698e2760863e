"""Page of a grid: its matrix and actions on experiments."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.models.grids.matrix import build_matrix
from dashboards.models.listing import UnknownError
from dashboards.pages.forms import chosen_experiments, read_form
from dashboards.security import REPORT_CSP
from dashboards.site import Site, fragment, part, version_of
from flows.records.gridfile import GridRecord
from flows.service.experiment_state import state_of
from flows.service.schedule import RefusedError
from hacpo_core.errors import HacpoError

_log = logging.getLogger(__name__)
ACTIONS = ("retry", "run", "cancel")
FIRST_REPLY_S = 0.3


def grid_routes(site: Site) -> APIRouter:
    """The page, its updates, and actions."""
    router = APIRouter()

    @router.get("/grid/{name}")
    def show(request: Request, name: str) -> Response:
        context = _context(site, name)
        live = fragment("grid/live.html", **context)
        report = report_of(site, site.runs.grid(name))
        return site.page(request, "grid/grid.html", live=live, has_report=report.is_file(), **context)

    @router.get("/grid/{name}/changes")
    def changes(name: str, seen: str = "") -> Response:
        return part("grid/live.html", _context(site, name), seen)

    @router.get("/grid/{name}/report.html")
    def report(name: str) -> Response:
        path = report_of(site, site.runs.grid(name))
        if not path.is_file():
            raise UnknownError(f"the grid {name} has no report; write it with `hacpo report {name}`")
        return Response(path.read_bytes(), media_type="text/html", headers={"content-security-policy": REPORT_CSP})

    @router.post("/actions")
    async def act(request: Request) -> Response:
        form = await read_form(request)
        action, experiments = form.get("action", [""])[0], chosen_experiments(form)
        if action not in ACTIONS:
            raise HTTPException(422, "no such action")
        outcomes = await run_in_threadpool(_act, site, action, experiments)
        return HTMLResponse(fragment("grid/outcome.html", outcomes=outcomes, action=action))

    return router


def report_of(site: Site, record: GridRecord) -> Path:
    """The report of a grid, where `hacpo report` writes it."""
    return site.runs.runs_dir / "reports" / record.name / "report.html"


def _context(site: Site, name: str) -> dict[str, Any]:
    """Template values of a grid."""
    schedule = site.scheduling.view(wait_s=FIRST_REPLY_S)
    record = site.runs.grid(name)
    status_of = cache(site.runs.status)  # read once for a request
    matrix = build_matrix(record, status_of, schedule)
    comparison = site.comparisons.of(record, status_of)
    live = {
        "matrix": matrix,
        "lines": {
            (pair, line.variant): line
            for pair, comparer in comparison.comparers.items()
            for line in comparer.lines
            if line.agents == comparer.agents
        },
        "verdicts": comparison.verdicts,
        "notice": schedule.notice,
    }
    return live | {"version": version_of(*live.values())}


def _act(site: Site, action: str, experiments: Sequence[str]) -> dict[str, str]:
    """Act on experiments; returns for each why it was refused, "" if it was not."""
    names = {*site.runs.names(), *(cell.experiment for record in site.runs.grids() for cell in record.cells)}
    outcomes = {name: "" if name in names else "there is no such experiment" for name in experiments}
    known = [name for name in experiments if name in names]
    try:
        runs = site.scheduling.view().runs
        schedule = site.scheduling.schedule()
    except RefusedError as error:
        return outcomes | dict.fromkeys(known, site.message(error))
    perform = schedule.cancel if action == "cancel" else schedule.start
    for name in known:
        state = state_of(site.runs.status(name), runs.get(name), site.runs.unavailable(name)).state
        outcomes[name] = _why_impossible(action, state) or _try(site, perform, name)
    site.scheduling.refresh(wait_s=2.0)
    return outcomes


def _why_impossible(action: str, state: str) -> str | None:
    """Why an action is not possible in a state, or None; the schedule reports its own."""
    expected, participle = {"retry": ("failed", "retried"), "run": ("missing", "run")}.get(action, (state, ""))
    return None if state == expected else f"it is {state}; only {expected} experiments are {participle}"


def _try(site: Site, perform: Callable[[str], object], experiment: str) -> str:
    try:
        perform(experiment)
    except HacpoError as error:
        return site.message(error)
    except Exception as error:  # noqa: BLE001  the outcomes of the other experiments must still be reported
        _log.exception("%s: the schedule could not be changed", experiment)
        return f"the schedule could not be changed: {type(error).__name__}"
    return ""
