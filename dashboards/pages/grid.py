"""Page of a grid: its matrix, updates, and actions on experiments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.models.grids.cells import build_matrix, total_spent
from dashboards.models.grids.comparison import Comparer
from dashboards.models.grids.failures import failure_groups
from dashboards.models.grids.matrix import Matrix, MatrixRow, beginning
from dashboards.models.grids.rows import summaries
from dashboards.models.grids.verdicts import GridVerdicts
from dashboards.models.listing import ALL_RUNS, UnknownError
from dashboards.pages.forms import chosen_experiments, read_form
from dashboards.report.cells import Variant
from dashboards.security import REPORT_CSP
from dashboards.site import Site, fragment, macro
from flows.records.gridfile import GridRecord
from flows.service.deployments import PRIORITIES
from flows.service.experiment_state import ScheduledRun, state_of
from flows.service.schedule import RefusedError, Schedule
from hacpo_core.errors import HacpoError
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)
ACTIONS = {"retry": "retry", "run": "run", "cancel": "cancel", **{name: f"priority {name}" for name in PRIORITIES}}
FIRST_REPLY_S = 0.3
FIRST_CELLS = 400
"""number of cells in the first response"""
_Rows = Literal["mean", "each"]
_Name = Annotated[str, Query(max_length=200)]
_UNKNOWN = "there is no such experiment"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an action on an experiment; `problem` is "" if it succeeded."""

    experiment: str
    problem: str


def grid_routes(site: Site) -> APIRouter:
    """The page, its updates, and actions."""
    router = APIRouter()

    @router.get("/grid/{name}")
    def show(request: Request, name: str, baseline: _Name = "", agents: _Rows = "mean") -> Response:
        view = _view(site, name, baseline, agents)
        first_cells = beginning(view.matrix, FIRST_CELLS)
        is_whole = first_cells == view.matrix
        texts = _texts(site, view, first_cells)
        # Without a version, the page requests the whole matrix as soon as the first part is rendered.
        version = site.changes(view.key).note(texts).version if is_whole else ""
        return site.page(
            request,
            "grid/grid.html",
            **_context(view, first_cells, texts, version),
            is_whole=is_whole,
            priorities=PRIORITIES,
            has_report=report_of(site, view.record).is_file(),
            all_runs=ALL_RUNS,
        )

    @router.get("/grid/{name}/changes")
    def changes(
        name: str,
        since: Annotated[str, Query(max_length=64)] = "",
        baseline: _Name = "",
        agents: _Rows = "mean",
    ) -> Response:
        view = _view(site, name, baseline, agents)
        texts = _texts(site, view, view.matrix)
        difference = site.changes(view.key).note(texts, since)
        if difference.version == since:
            return Response(status_code=204)
        section_names = {"verdicts", "totals", "failures", "notice"}
        return HTMLResponse(
            fragment(
                "grid/grid_changes.html",
                **_context(view, view.matrix, texts, difference.version),
                changed=difference.changed,
                cells=[key for key in difference.changed if key not in section_names],
                is_whole=difference.is_whole,
            )
        )

    @router.get("/drawer")
    def drawer(experiment: Annotated[list[str], Query(max_length=32)]) -> Response:
        runs = [_drawer_values(site, name) for name in experiment]
        title = experiment[0] if len(experiment) == 1 else f"{len(experiment)} single-agent runs"
        return HTMLResponse(fragment("grid/drawer.html", title=title, runs=runs, priorities=PRIORITIES))

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
        return HTMLResponse(fragment("grid/outcome.html", outcomes=outcomes, action=ACTIONS[action]))

    return router


@dataclass(frozen=True, slots=True)
class View:
    """A grid as a request asks for it; `baseline` is None if there are fewer than two methods."""

    record: GridRecord
    matrix: Matrix
    verdicts: GridVerdicts
    comparers: Mapping[str, Comparer]
    variants: Mapping[str, Variant]
    """methods that rows are compared with, by their key in the address"""
    baseline: str
    agents: str
    notice: str

    @property
    def key(self) -> str:
        """Name of this view's parts."""
        return f"{self.record.name}?{self.baseline}?{self.agents}"


def report_of(site: Site, record: GridRecord) -> Path:
    """The report of a grid, where `hacpo report` writes it."""
    return site.runs.runs_dir / "reports" / record.name / "report.html"


def _view(site: Site, name: str, baseline: str, agents: str) -> View:
    schedule = site.scheduling.view(wait_s=FIRST_REPLY_S)
    record = site.runs.grid(name)
    status_of = cache(site.runs.status)  # read once for a request
    matrix = build_matrix(record, status_of, schedule, by_agent=agents == "each")
    comparison = site.comparisons.of(record, status_of)
    verdicts = comparison.verdicts if name != ALL_RUNS else GridVerdicts(None)
    methods = [verdicts.ours, *verdicts.baselines] if verdicts.ours is not None else []
    variants = {f"{v.method}/{v.label}" if v.label else v.method: v for v in methods if v is not None}
    if baseline and baseline not in variants:
        raise UnknownError(f"the grid {name} has no method {baseline!r} to compare with")
    default = next((key for key, v in variants.items() if v == (verdicts.best_baseline or verdicts.ours)), "")
    return View(record, matrix, verdicts, comparison.comparers, variants, baseline or default, agents, schedule.notice)


def _context(view: View, matrix: Matrix, texts: Mapping[str, str], version: str) -> dict[str, Any]:
    seeds = {section.seeds for section in matrix.sections}
    return {
        "matrix": matrix,
        "texts": texts,
        "titles": {row.key: row_title(row) for section in matrix.sections for row in section.rows},
        "baselines": {key: variant.title for key, variant in view.variants.items()},
        "baseline": view.baseline,
        "agents": view.agents,
        "num_seeds": max((len(section_seeds) for section_seeds in seeds), default=0),
        "seeds": next(iter(seeds)) if len(seeds) == 1 else (),
        "version": version,
        "notice": view.notice,
    }


def row_title(row: MatrixRow) -> str:
    """Name of a row: its method, and its agent if the row is that of one."""
    title = Variant(row.method or "run", row.label).title
    return f"{title} · {row.agent}" if row.agent else title


def _texts(site: Site, view: View, matrix: Matrix) -> dict[str, str]:
    """Parts of the page that can change, rendered, by name."""
    cell_button, row_summary = macro("grid/cell.html", "button"), macro("grid/cell.html", "summary")
    status_of = site.runs.status
    row_summaries = summaries(matrix, view.comparers, view.variants.get(view.baseline))
    groups = failure_groups(view.matrix.cells(), status_of)
    texts: dict[str, str] = {
        "verdicts": fragment("grid/verdicts.html", verdicts=view.verdicts, num_pairs=len(view.matrix.sections)),
        "totals": fragment("grid/totals.html", matrix=view.matrix, stacked=macro("macros.html", "stacked")),
        "failures": fragment("grid/failures.html", groups=groups),
        "notice": view.notice,
    }
    for section in matrix.sections:
        values = [cell.value for row in section.rows for cell in row.cells if cell is not None and cell.state == "done"]
        finite_values = [value for value in values if value is not None]
        low, high = min(finite_values, default=0.0), max(finite_values, default=0.0)
        for row in section.rows:
            title = row_title(row)
            texts |= {cell.key: cell_button(cell, title, low, high) for cell in row.cells if cell is not None}
            texts[row.key] = row_summary(row, row_summaries[row.key])
    return texts


def _drawer_values(site: Site, experiment: str) -> dict[str, Any]:
    """Template values for an experiment in the drawer, which need not have started."""
    names = {cell.experiment for record in site.runs.grids() for cell in record.cells}
    if experiment not in names:
        site.runs.root(experiment)
    status = site.runs.status(experiment)
    state = state_of(status, site.scheduling.view().runs.get(experiment), site.runs.unavailable(experiment))
    lines: dict[str, list[float]] = {}
    if status.progress is not None:
        root = site.runs.root(experiment)
        steps = site.curves.read(root, StepStore(root).last_step()).agents
        for _, agents in sorted(steps.items()):
            for agent, values in agents.items():
                if "reward/mean" in values:  # metrics of all agents together have none
                    lines.setdefault(f"{agent} reward", []).append(values["reward/mean"])
        for evaluation in sorted(status.progress.evaluations, key=lambda entry: entry.step):
            lines.setdefault(f"{evaluation.agent} on {evaluation.benchmark}", []).append(evaluation.value)
    progress = status.progress
    context = {"experiment": experiment, "state": state, "progress": progress, "spent": total_spent(progress)}
    context["has_page"] = experiment in site.runs.names()  # not before it has started
    return context | {"lines": lines}


def _act(site: Site, action: str, experiments: Sequence[str]) -> list[Outcome]:
    names = {*site.runs.names(), *(cell.experiment for record in site.runs.grids() for cell in record.cells)}
    try:
        runs = site.scheduling.view().runs
        perform = _operation(site.scheduling.schedule(), action, runs)
    except RefusedError as error:
        return [
            Outcome(experiment, site.message(error) if experiment in names else _UNKNOWN) for experiment in experiments
        ]
    outcomes = []
    for experiment in experiments:
        if experiment not in names:
            outcomes.append(Outcome(experiment, _UNKNOWN))
            continue
        unavailable = site.runs.unavailable(experiment)
        state = state_of(site.runs.status(experiment), runs.get(experiment), unavailable).state
        outcomes.append(Outcome(experiment, _why_impossible(action, state) or _try(site, perform, experiment)))
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


def _why_impossible(action: str, state: str) -> str | None:
    """Why an action is not possible in a state, or None; the schedule reports its own."""
    if action == "retry" and state != "failed":
        return f"it is {state}; only failed experiments are retried"
    if action == "run" and state != "missing":
        return f"it is {state}; only missing experiments are run"
    return None


def _try(site: Site, perform: Callable[[str], object], experiment: str) -> str:
    try:
        perform(experiment)
    except HacpoError as error:
        return site.message(error)
    except Exception as error:  # noqa: BLE001  the outcomes of the other experiments must still be reported
        _log.exception("%s: the schedule could not be changed", experiment)
        return f"the schedule could not be changed: {type(error).__name__}"
    return ""
