"""The dashboard as a FastAPI application: readers, routes, middleware."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from dashboards.models.listing import Runs, UnknownError
from dashboards.models.scheduling import Scheduling, connector
from dashboards.pages.compare import compare_routes
from dashboards.pages.grid import grid_routes
from dashboards.pages.login import login_routes
from dashboards.pages.overview import overview_routes
from dashboards.pages.run import run_routes
from dashboards.pages.runs import runs_routes
from dashboards.pages.samples import problem_context, samples_routes
from dashboards.security import Access, Guard
from dashboards.site import Site, part, version_of
from flows.service.schedule import Schedule

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def create_app(
    runs_dir: Path,
    *,
    access: Access | None = None,
    connect: Callable[[], Schedule | None] | None = None,
    mlflow_url: Callable[[], str] = lambda: "",
    warm: bool = False,
) -> FastAPI:
    """Create the dashboard of a runs folder, which need not exist yet.

    Args:
        runs_dir: folder of all runs.
        access: who may use it; default: loopback host names, no token.
        connect: returns the schedule, None without a server; default: that of the folder's Prefect server.
        mlflow_url: returns the address of MLflow's page, "" if it does not run.
        warm: read the folder before the first request, and preload data of slow pages in the background.
    """
    site = Site(Runs(runs_dir), Scheduling(connect or connector(runs_dir)), mlflow_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if warm:
            site.scheduling.view()
            # Takes a second for 1,000 runs; done before the first request.
            await run_in_threadpool(lambda: [site.runs.status(name) for name in site.runs.names()])
            threading.Thread(target=_preload, args=(site,), name="warm-up", daemon=True).start()
        yield
        site.scheduling.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.site = site
    routers = (overview_routes, grid_routes, runs_routes, run_routes, compare_routes, samples_routes, login_routes)
    for routes in routers:
        app.include_router(routes(site))

    @app.get("/links")
    def links(request: Request, seen: str = "") -> Response:
        links_of_visitor = site.links(request)
        return part(
            "links.html",
            {"links": links_of_visitor, "version": version_of(links_of_visitor), "is_admitted": True},
            seen,
        )

    app.mount("/static", _Static(packages=[("dashboards", "static")]))
    app.add_middleware(Guard, access=access or Access(LOOPBACK))

    @app.exception_handler(UnknownError)
    def unknown(request: Request, error: UnknownError) -> Response:
        return site.page(request, "error.html", status_code=404, title="Not found", message=site.message(error))

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 413 and "hx-request" in request.headers:  # shown in the page, in place of an outcome
            return PlainTextResponse(error.detail, 413)
        title = "Page not found" if error.status_code == 404 else "Request failed"
        return site.page(request, "error.html", status_code=error.status_code, title=title, message=error.detail)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        names = ", ".join(str(item["loc"][-1]) for item in error.errors())
        message = f"The address has invalid parameters: {names}."
        return site.page(request, "error.html", status_code=422, title="Invalid address", message=message)

    return app


class _Static(StaticFiles):
    """Serves static files with long-lived caching, since their addresses change with their content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def _preload(site: Site) -> None:
    """Compare the newest grid, and read the responses of the newest run."""
    for record in site.runs.grids()[:1]:
        site.comparisons.of(record, site.runs.status)
    progress = {name: site.runs.status(name).progress for name in site.runs.names()}
    updated_at = {name: run_progress.updated_at for name, run_progress in progress.items() if run_progress is not None}
    if updated_at:
        with suppress(UnknownError):
            problem_context(site, max(updated_at, key=lambda name: updated_at[name]))
