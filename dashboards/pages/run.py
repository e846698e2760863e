"""Page of a run: progress, curves, what happened, configuration, and failure."""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.runs.curves import folded_areas, read_metrics, run_chart
from dashboards.site import FILE_KINDS, Site, chart_response, fragment, part, version_of
from flows.records.mlflow_address import read_state
from flows.records.progress import Spent
from flows.records.runlog import LOG_FILE, read_log
from flows.records.states import CONFIG_FILE
from flows.service.experiment_state import state_of
from hacpo_core.phases.definitions import definition
from hacpo_core.store.steps import StepStore

NAMED_STEPS = 20
LOG_LINES = 40
_Area = Annotated[str, Query(max_length=100)]


def run_routes(site: Site) -> APIRouter:
    """The page of a run and its updates."""
    router = APIRouter()

    @router.get("/run/{experiment}")
    def show(request: Request, experiment: str) -> Response:
        root = site.runs.root(experiment)
        config, last = root / CONFIG_FILE, StepStore(root).last_step()
        # the last steps are enough for the names: some metrics are measured every ten steps
        areas = folded_areas(read_metrics(root, first=last - NAMED_STEPS + 1))
        return site.page(
            request,
            "run/run.html",
            experiment=experiment,
            grids=[grid for grid in site.runs.grids() if any(cell.experiment == experiment for cell in grid.cells)],
            status=fragment("run/status.html", **_status(site, request, experiment)),
            every=0 if site.runs.status(experiment).state == "done" else 3,
            areas={area: {name: definition(name) for name in names} for area, names in areas.items()},
            log=fragment("run/log.html", **_log(site, experiment)),
            config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        )

    @router.get("/run/{experiment}/status")
    def status(request: Request, experiment: str, seen: str = "") -> Response:
        return part("run/status.html", _status(site, request, experiment), seen)

    @router.get("/run/{experiment}/log")
    def log(experiment: str, seen: str = "") -> Response:
        return part("run/log.html", _log(site, experiment), seen)

    @router.get("/run/{experiment}/curve.{kind}")
    def curve(experiment: str, kind: FILE_KINDS, area: _Area = "", seen: str = "") -> Response:
        root, progress = site.runs.root(experiment), site.runs.status(experiment).progress
        evaluations = progress.evaluations if progress is not None else []
        return chart_response(run_chart(read_metrics(root), evaluations, area), kind, seen)

    return router


def _status(site: Site, request: Request, experiment: str) -> dict[str, Any]:
    root = site.runs.root(experiment)
    status = site.runs.status(experiment)
    run = site.scheduling.view(wait_s=0.2).runs.get(experiment)
    state = state_of(status, run, site.runs.unavailable(experiment))
    links, mlflow_run = site.links(request), _mlflow_run(root)
    context: dict[str, Any] = {
        "experiment": experiment,
        "cell_state": state,
        "shown_state": status.shown(state.state),
        "progress": status.progress,
        "spent": status.progress.total if status.progress is not None else Spent(),
        "run": run,
        "failure": status.failure,
        "has_steps": StepStore(root).last_step() > 0,
        "prefect": f"{links.prefect}/runs/flow-run/{run.id}" if links.prefect and run is not None else "",
        "mlflow": f"{links.mlflow}/#/runs/{mlflow_run}" if links.mlflow and mlflow_run else "",
    }
    return context | {"version": version_of(*context.values())}


def _log(site: Site, experiment: str) -> dict[str, Any]:
    """Template values for the end of the log, live until the run is done."""
    lines = read_log(site.runs.root(experiment))[-LOG_LINES:]
    is_live = site.runs.status(experiment).state != "done"
    context = {"experiment": experiment, "lines": lines, "file": LOG_FILE, "is_live": is_live}
    return context | {"version": version_of(lines, is_live)}


def _mlflow_run(root: Path) -> str:
    """Id of the experiment's run in MLflow, "" if it was not tracked."""
    run = str(read_state(root).get("run", ""))
    return run if run.isalnum() else ""
