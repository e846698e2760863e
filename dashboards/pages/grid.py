"""Page of a grid: its matrix, updates, and actions on experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.models.cells import Matrix, beginning, build_matrix, judge
from dashboards.models.listing import ALL_RUNS
from dashboards.pages.forms import read_form
from dashboards.site import Site, fragment, macro
from flows.service.deployments import PRIORITIES
from flows.service.schedule import RefusedError, Schedule, ScheduledRun
from hacpo_core.errors import HacpoError

ACTIONS = {"retry": "retry", "run": "run", "cancel": "cancel", **{name: f"priority {name}" for name in PRIORITIES}}
FIRST_ANSWER_S = 0.3
FIRST_CELLS = 150
"""number of cells in the first response; a browser takes half a second to render a thousand"""
_UNKNOWN = "there is no such experiment"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an action on an experiment; `refusal` is "" if it succeeded."""

    experiment: str
    refusal: str


def grid_routes(site: Site) -> APIRouter:
    """The page, its updates, and actions."""
    router = APIRouter()

    @router.get("/")
    def latest(request: Request) -> Response:
        grids = site.runs.grids()
        return show(request, grids[0].name if grids else ALL_RUNS)

    @router.get("/grid/{name}")
    def show(request: Request, name: str) -> Response:
        matrix = _matrix(site, name)
        chooser, notice = site.runs.chooser(), site.scheduling.view().notice
        shown = beginning(matrix, FIRST_CELLS)
        is_whole = shown == matrix
        parts = _parts(shown, chooser, notice)
        # Without a version, the page requests the whole matrix as soon as the first part is rendered.
        version = site.changes(name).note(parts).version if is_whole else ""
        return site.page(
            request,
            "grid.html",
            matrix=shown,
            texts=parts,
            version=version,
            is_whole=is_whole,
            chooser=chooser,
            notice=notice,
            priorities=PRIORITIES,
        )

    @router.get("/grid/{name}/changes")
    def changes(name: str, since: Annotated[str, Query(max_length=64)] = "") -> Response:
        matrix = _matrix(site, name)
        chooser, notice = site.runs.chooser(), site.scheduling.view().notice
        parts = _parts(matrix, chooser, notice)
        difference = site.changes(name).note(parts, since)
        if difference.version == since:
            return Response(status_code=204)
        changed = set(difference.changed)
        return HTMLResponse(
            fragment(
                "grid_changes.html",
                matrix=matrix,
                texts=parts,
                version=difference.version,
                cells=[cell for cell in matrix.cells() if cell.key in changed],
                is_whole=difference.is_whole,
                chooser=chooser if "chooser" in changed else None,
                notice=notice,
            )
        )

    @router.post("/actions")
    async def act(request: Request) -> Response:
        form = await read_form(request)
        action, chosen = form.get("action", [""])[0], list(dict.fromkeys(form.get("experiment", [])))
        if action not in ACTIONS:
            raise HTTPException(422, "no such action")
        outcomes = await run_in_threadpool(_act, site, action, chosen)
        return HTMLResponse(fragment("outcome.html", outcomes=outcomes, action=ACTIONS[action]))

    return router


def _matrix(site: Site, name: str) -> Matrix:
    schedule = site.scheduling.view(wait_s=FIRST_ANSWER_S)
    return build_matrix(site.runs.grid(name), site.runs.standing, schedule)


def _parts(matrix: Matrix, chooser: Sequence[tuple[str, str]], notice: str) -> dict[str, str]:
    """Parts of the page that can change, as text by name: rendered cells, totals, list of grids, notice."""
    live = macro("cell.html", "live")
    others = {"totals": repr(matrix.totals), "chooser": repr(chooser), "notice": notice}
    return {cell.key: live(cell) for cell in matrix.cells()} | others


def _act(site: Site, action: str, chosen: Sequence[str]) -> list[Outcome]:
    places = {place.experiment: place for record in site.runs.grids() for place in record.places}
    known = {*site.runs.names(), *places}
    try:
        runs = site.scheduling.view().runs
        perform = _operation(site.scheduling.schedule(), action, runs)
    except RefusedError as error:
        return [Outcome(experiment, str(error) if experiment in known else _UNKNOWN) for experiment in chosen]
    outcomes = []
    for experiment in chosen:
        if experiment not in known:
            outcomes.append(Outcome(experiment, _UNKNOWN))
            continue
        place = places.get(experiment)
        unavailable = place.unavailable if place is not None else ""
        state = judge(site.runs.standing(experiment), runs.get(experiment), unavailable).state
        outcomes.append(Outcome(experiment, _refusal(action, state) or _try(perform, experiment)))
    site.scheduling.refresh(wait_s=2.0)
    return outcomes


def _operation(schedule: Schedule, action: str, runs: Mapping[str, ScheduledRun]) -> Callable[[str], object]:
    if action in ("retry", "run"):  # keeps its priority
        return lambda experiment: schedule.start(
            experiment, runs[experiment].priority if experiment in runs else "normal"
        )
    if action == "cancel":
        return schedule.cancel
    return lambda experiment: schedule.set_priority(experiment, action)


def _refusal(action: str, state: str) -> str:
    """Why an action is not possible in a state, else ""; the schedule reports its own refusals."""
    if action == "retry" and state != "failed":
        return f"it is {state}; only failed experiments are retried"
    if action == "run" and state != "missing":
        return f"it is {state}; only missing experiments are run"
    return ""


def _try(perform: Callable[[str], object], experiment: str) -> str:
    try:
        perform(experiment)
    except HacpoError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  the outcomes of the other experiments must still be reported
        return f"the schedule could not be changed: {type(error).__name__}"
    return ""
