"""One run: how far it is, its curves, who waited for whom, its settings, and why it failed."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from dashboards.cells import Verdict, judge, total_spent
from dashboards.curves import charts
from dashboards.settings import differences, read_settings
from dashboards.site import Site, fragment
from dashboards.timeline import KINDS, timeline
from dashboards.tracebacks import frames
from flows.schedule import ScheduledRun
from flows.states import Standing
from hacpo_core.errors import StoreError
from hacpo_core.store import StepStore, read_json

SHOWN_STEPS = 5
MOST_OFFERED = 200


def run_routes(site: Site) -> APIRouter:
    """The page of a run and its parts."""
    router = APIRouter()

    @router.get("/run/{experiment}")
    def show(request: Request, experiment: str, against: str = "") -> Response:
        root = site.runs.root(experiment)
        settings = read_settings(root)
        other = site.runs.root(against).name if against else ""
        standing = site.runs.standing(experiment)
        last = StepStore(root).last_step()
        return site.page(
            request,
            "run.html",
            experiment=experiment,
            status=_status(site, experiment),
            settings=settings,
            against=other,
            differences=differences(settings, read_settings(site.runs.root(other))) if other else [],
            others=_others(site, experiment),
            failure=standing.failure,
            frames=frames(standing.failure.traceback) if standing.failure is not None else [],
            timeline=timeline(root, last - SHOWN_STEPS + 1, last),
            kinds=KINDS,
            last_step=last,
        )

    @router.get("/run/{experiment}/status")
    def status(experiment: str, seen: str = "") -> Response:
        site.runs.root(experiment)
        found = _status(site, experiment)
        return Response(status_code=204) if found["seen"] == seen else HTMLResponse(fragment("status.html", s=found))

    @router.get("/run/{experiment}/curves.json")
    def curves(experiment: str, since: Annotated[int, Query(ge=0)] = 0) -> Response:
        root, standing = site.runs.root(experiment), site.runs.standing(experiment)
        num_steps = StepStore(root).last_step()
        metrics = site.curves.read(root, num_steps)
        evaluations = standing.progress.evaluations if standing.progress is not None else []
        return JSONResponse(
            {
                "charts": [asdict(chart) for chart in charts(metrics, evaluations, since)],
                "last": max(metrics.agents, default=0),
                "num_torn": metrics.num_torn,
                "is_done": standing.state == "done",
            }
        )

    @router.get("/run/{experiment}/timeline")
    def show_timeline(
        experiment: str, first: Annotated[int, Query(ge=0)] = 1, last: Annotated[int, Query(ge=0)] = SHOWN_STEPS
    ) -> Response:
        root = site.runs.root(experiment)
        last = min(max(last, first), StepStore(root).last_step())
        return HTMLResponse(fragment("timeline.html", timeline=timeline(root, first, last), kinds=KINDS))

    return router


def _others(site: Site, experiment: str) -> list[str]:
    """Runs to compare settings with, those of the same name but for the seed and the digest first."""
    stem = experiment.rsplit("-", 2)[0]
    names = [name for name in site.runs.names() if name != experiment]
    return sorted(names, key=lambda name: (not name.startswith(stem), name))[:MOST_OFFERED]


def _status(site: Site, experiment: str) -> dict[str, Any]:
    standing = site.runs.standing(experiment)
    run = site.scheduling.view(wait_s=0.2).runs.get(experiment)
    verdict = judge(standing, run, "")
    links = site.links()
    found: dict[str, Any] = {
        "experiment": experiment,
        "verdict": verdict,
        "progress": standing.progress,
        "spent": total_spent(standing.progress),
        "run": run,
        "prefect": f"{links.prefect}/runs/flow-run/{run.id}" if links.prefect and run is not None else "",
        "mlflow": _mlflow_link(site, experiment, links.mlflow),
    }
    return found | {"seen": _digest(standing, verdict, run, found["mlflow"])}


def _digest(standing: Standing, verdict: Verdict, run: ScheduledRun | None, link: str) -> str:
    return hashlib.sha256(repr((standing.progress, verdict, run, link)).encode()).hexdigest()[:12]


def _mlflow_link(site: Site, experiment: str, page: str) -> str:
    """Address of the run in MLflow's page; "" where it was not tracked, or nothing serves that page."""
    root = site.runs.root(experiment)
    try:
        run = str(read_json(root / "mlflow.json")["run"])
    except (StoreError, KeyError, TypeError):
        return ""
    if not page or not run.isalnum():
        return ""
    folder = _mlflow_experiment(site.runs.runs_dir / "mlflow.db", run)
    return f"{page}/#/experiments/{folder}/runs/{run}" if folder else f"{page}/#/"


def _mlflow_experiment(database: Path, run: str) -> str:
    """MLflow's experiment that holds a run, "" where it is in another store than the folder's own."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            found = connection.execute("SELECT experiment_id FROM runs WHERE run_uuid = ?", (run,)).fetchone()
    except sqlite3.Error:
        return ""
    return str(found[0]) if found else ""
