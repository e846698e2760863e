"""Page of a run: progress, curves, checkpoints, what happened, configuration, and failure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.models.grids.cells import total_spent
from dashboards.models.listing import ALL_RUNS
from dashboards.models.runs.checkpoints import KEEP_BEST, read_checkpoints
from dashboards.models.runs.curves import (
    ABOUT_ACCURACY,
    StepMetrics,
    accuracy_chart,
    by_area,
    metric_chart,
    metrics_to_show,
)
from dashboards.models.runs.settings import differences, read_field_values
from dashboards.site import FILE_KINDS, Link, Site, chart_response, fragment, part, version_of
from flows.planning.field_table import about
from flows.records.mlflow_address import STATE_FILE
from flows.records.runlog import LOG_FILE, read_log
from flows.service.experiment_state import state_of
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json
from hacpo_core.phases.definitions import definition
from hacpo_core.store.steps import REPLAYS_FILE, StepStore

ACCURACY = "accuracy"
"""the curve of evaluations; names of metrics have a "/"."""
NAMED_STEPS = 20
LOG_LINES = 40
MAX_EVENTS = 50
_Shown = Annotated[tuple[str, ...], Query(max_length=100)]
"""names of metrics"""


def run_routes(site: Site) -> APIRouter:
    """The page of a run and its updates."""
    router = APIRouter()

    @router.get("/run/{experiment}")
    def show(request: Request, experiment: str, shown: _Shown = (), against: str = "") -> Response:
        records, metrics = _records(site, experiment), _newest_metrics(site, site.runs.root(experiment))
        other = site.runs.root(against).name if against else ""
        return site.page(
            request,
            "run/run.html",
            experiment=experiment,
            status=fragment("run/status.html", **_status(site, request, experiment)),
            curves=fragment("run/curves.html", **_curves(site, experiment, metrics, shown)),
            areas=by_area(metrics.names(), metrics_to_show(metrics.names(), shown)),
            log=fragment("run/log.html", **_log(site, experiment)),
            against=other,
            differences=differences(records["settings"], read_field_values(site.runs.root(other))) if other else [],
            **records,
        )

    @router.get("/run/{experiment}/status")
    def status(request: Request, experiment: str, seen: str = "") -> Response:
        return part("run/status.html", _status(site, request, experiment), seen)

    @router.get("/run/{experiment}/curves")
    def curves(experiment: str, shown: _Shown = ()) -> Response:
        context = _curves(site, experiment, _newest_metrics(site, site.runs.root(experiment)), shown)
        address = urlencode([("shown", name) for name in shown])
        headers = {"hx-push-url": f"/run/{quote(experiment, safe='')}?{address}"}
        return HTMLResponse(fragment("run/curves.html", **context), headers=headers)

    @router.get("/run/{experiment}/log")
    def log(experiment: str, seen: str = "") -> Response:
        return part("run/log.html", _log(site, experiment), seen)

    @router.get("/run/{experiment}/curve.{kind}")
    def curve(experiment: str, metric: str, kind: FILE_KINDS, seen: str = "") -> Response:
        root = site.runs.root(experiment)
        if metric != ACCURACY:
            return chart_response(metric_chart(_metrics(site, root), metric), kind, seen)
        progress = site.runs.status(experiment).progress
        return chart_response(accuracy_chart(progress.evaluations if progress is not None else []), kind, seen)

    return router


def _records(site: Site, experiment: str) -> dict[str, Any]:
    """Template values for what the run has behind it: its grids, checkpoints, attempts and replays."""
    root = site.runs.root(experiment)
    settings = read_field_values(root)
    return {
        "grids": [grid for grid in site.runs.grids() if any(cell.experiment == experiment for cell in grid.cells)],
        "all_runs": ALL_RUNS,
        "checkpoints": read_checkpoints(root, keeps_best=settings.get(KEEP_BEST, "null") != "null"),
        "events": [line for line in read_log(root) if line.kind != "step"][-MAX_EVENTS:],
        "replays": _replays(root),
        "settings": settings,
        "about": about(settings),
    }


def _metrics(site: Site, root: Path) -> StepMetrics:
    return site.curves.read(root, StepStore(root).last_step())


def _newest_metrics(site: Site, root: Path) -> StepMetrics:
    """Metrics of the last steps, enough for the names: some are measured every ten steps."""
    last = StepStore(root).last_step()
    return site.curves.read(root, last, first=last - NAMED_STEPS + 1)


def _curves(site: Site, experiment: str, metrics: StepMetrics, shown_names: Sequence[str]) -> dict[str, Any]:
    """Template values for the charts of the chosen metrics."""
    is_done = site.runs.status(experiment).state == "done"
    meanings = {ACCURACY: ABOUT_ACCURACY} | {
        name: definition(name) for name in metrics_to_show(metrics.names(), shown_names)
    }
    return {"experiment": experiment, "every": 0 if is_done else 3, "metrics": meanings.items()}


def _status(site: Site, request: Request, experiment: str) -> dict[str, Any]:
    root = site.runs.root(experiment)
    status = site.runs.status(experiment)
    run = site.scheduling.view(wait_s=0.2).runs.get(experiment)
    state = state_of(status, run, site.runs.unavailable(experiment))
    links, mlflow_run = site.links(request), _mlflow_run(root)
    context: dict[str, Any] = {
        "experiment": experiment,
        "cell_state": state,
        "progress": status.progress,
        "spent": total_spent(status.progress),
        "run": run,
        "failure": status.failure,
        "has_steps": StepStore(root).last_step() > 0,
        "prefect": links.prefect.to(f"/runs/flow-run/{run.id}") if run is not None else Link(),
        "mlflow": links.mlflow.to(f"/#/runs/{mlflow_run}") if mlflow_run else Link(),
    }
    return context | {"version": version_of(*context.values())}


def _replays(root: Path) -> list[dict[str, Any]]:
    """Updates that were replayed after an interruption, newest first."""
    try:
        replays: list[dict[str, Any]] = read_json(root / REPLAYS_FILE)
    except StoreError:  # missing, or corrupt, which the next replay logs
        return []
    return replays[::-1]


def _log(site: Site, experiment: str) -> dict[str, Any]:
    """Template values for the end of the log, live until the run is done."""
    lines = read_log(site.runs.root(experiment))[-LOG_LINES:]
    is_live = site.runs.status(experiment).state != "done"
    context = {"experiment": experiment, "lines": lines, "file": LOG_FILE, "is_live": is_live}
    return context | {"version": version_of(lines, is_live)}


def _mlflow_run(root: Path) -> str:
    """Id of the experiment's run in MLflow, "" if it was not tracked."""
    try:
        run = str(read_json(root / STATE_FILE)["run"])
    except (StoreError, KeyError, TypeError):
        return ""
    return run if run.isalnum() else ""
