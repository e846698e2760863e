"""Page of a run: progress, training curves, timeline, configuration, and failure."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dashboards.models.cells import judge, total_spent
from dashboards.models.changes import version_of
from dashboards.models.curves import charts
from dashboards.models.settings import differences, read_field_values
from dashboards.models.timeline import PHASE_KINDS, timeline
from dashboards.models.tracebacks import frames
from dashboards.site import Link, Site, fragment, part
from flows.planning.field_table import about
from hacpo_core.config.addresses import STATE_FILE
from hacpo_core.errors import StoreError
from hacpo_core.store.files import read_json
from hacpo_core.store.steps import REPLAYS_FILE, StepStore

SHOWN_STEPS = 5
MOST_OFFERED = 200


def run_routes(site: Site) -> APIRouter:
    """The page of a run and its updates."""
    router = APIRouter()

    @router.get("/run/{experiment}")
    def show(request: Request, experiment: str, against: str = "") -> Response:
        settings = read_field_values(site.runs.root(experiment))
        other = site.runs.root(against).name if against else ""
        phases = _phases(site, experiment, None, None)
        return site.page(
            request,
            "run.html",
            experiment=experiment,
            status=fragment("status.html", **_status(site, request, experiment)),
            phases=fragment("timeline.html", **phases),
            steps=phases["timeline"],
            replays=_replays(site.runs.root(experiment)),
            settings=settings,
            about=about(settings),
            against=other,
            differences=differences(settings, read_field_values(site.runs.root(other))) if other else [],
            others=_others(site, experiment),
        )

    @router.get("/run/{experiment}/status")
    def status(request: Request, experiment: str, seen: str = "") -> Response:
        return part("status.html", _status(site, request, experiment), seen)

    @router.get("/run/{experiment}/curves.json")
    def curves(experiment: str, since: Annotated[int, Query(ge=0)] = 0, seen: str = "") -> Response:
        root, standing = site.runs.root(experiment), site.runs.standing(experiment)
        num_steps = StepStore(root).last_step()
        metrics = site.curves.read(root, num_steps)
        evaluations = standing.progress.evaluations if standing.progress is not None else []
        facts = {
            "last": max(metrics.agents, default=0),
            "num_torn": metrics.num_torn,
            "is_done": standing.state == "done",
        }
        version = version_of(facts, evaluations)
        if seen == version:
            return Response(status_code=204)
        shown = [asdict(chart) for chart in charts(metrics, evaluations, since)]
        return JSONResponse({"charts": shown, "version": version, **facts})

    @router.get("/run/{experiment}/timeline")
    def show_timeline(
        experiment: str,
        first: Annotated[int | None, Query(ge=0)] = None,
        last: Annotated[int | None, Query(ge=0)] = None,
        seen: str = "",
    ) -> Response:
        return part("timeline.html", _phases(site, experiment, first, last), seen)

    return router


def _others(site: Site, experiment: str) -> list[str]:
    """Runs to compare the configuration with; those that differ only in seed and digest come first."""
    stem = experiment.rsplit("-", 2)[0]
    names = [name for name in site.runs.names() if name != experiment]
    return sorted(names, key=lambda name: (not name.startswith(stem), name))[:MOST_OFFERED]


def _phases(site: Site, experiment: str, first: int | None, last: int | None) -> dict[str, Any]:
    """Template values for the timeline of these steps; without a range, of the newest ones, updated live."""
    root = site.runs.root(experiment)
    newest = StepStore(root).last_step()
    is_live = first is None and last is None and site.runs.standing(experiment).state != "done"
    last = newest if last is None else min(max(last, first or 0), newest)
    shown = timeline(root, last - SHOWN_STEPS + 1 if first is None else first, last)
    context = {"experiment": experiment, "timeline": shown, "kinds": PHASE_KINDS, "is_live": is_live}
    return context | {"version": version_of(shown, is_live)}


def _status(site: Site, request: Request, experiment: str) -> dict[str, Any]:
    root = site.runs.root(experiment)
    standing = site.runs.standing(experiment)
    run = site.scheduling.view(wait_s=0.2).runs.get(experiment)
    cell_state = judge(standing, run, "")
    links, tracked = site.links(request), _mlflow_run(root)
    context: dict[str, Any] = {
        "experiment": experiment,
        "cell_state": cell_state,
        "progress": standing.progress,
        "spent": total_spent(standing.progress),
        "run": run,
        "failure": standing.failure,
        "frames": frames(standing.failure.traceback) if standing.failure is not None else [],
        "has_steps": StepStore(root).last_step() > 0,
        "prefect": links.prefect.to(f"/runs/flow-run/{run.id}") if run is not None else Link(),
        "mlflow": links.mlflow.to(f"/#/runs/{tracked}") if tracked else Link(),
    }
    return context | {"version": version_of(*context.values())}


def _replays(root: Path) -> list[dict[str, Any]]:
    """Updates that were replayed after an interruption, newest first."""
    try:
        replays: list[dict[str, Any]] = read_json(root / REPLAYS_FILE)
    except StoreError:  # missing, or corrupt, which the next replay logs
        return []
    return replays[::-1]


def _mlflow_run(root: Path) -> str:
    """Id of the experiment's run in MLflow, "" if it was not tracked."""
    try:
        run = str(read_json(root / STATE_FILE)["run"])
    except (StoreError, KeyError, TypeError):
        return ""
    return run if run.isalnum() else ""
