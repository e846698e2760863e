"""The dashboard as a FastAPI application: readers, routes, middleware."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from dashboards.models.listing import Runs, UnknownError
from dashboards.models.scheduling import Scheduling, connector
from dashboards.pages.grid import grid_routes
from dashboards.pages.login import login_routes
from dashboards.pages.overview import overview_routes
from dashboards.pages.run import run_routes
from dashboards.pages.runs import runs_routes
from dashboards.pages.samples import samples_routes
from dashboards.security import Access, Guard
from dashboards.site import Site
from flows.service.schedule import Schedule

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def create_app(
    runs_dir: Path,
    *,
    access: Access | None = None,
    connect: Callable[[], Schedule | None] | None = None,
    mlflow_url: Callable[[], str] = lambda: "",
) -> FastAPI:
    """Create the dashboard of a runs folder, which need not exist yet.

    Args:
        runs_dir: folder of all runs.
        access: who may use it; default: loopback host names, no token.
        connect: returns the schedule, None without a server; default: that of the folder's Prefect server.
        mlflow_url: returns the address of MLflow's page, "" if it does not run.
    """
    site = Site(Runs(runs_dir), Scheduling(connect or connector(runs_dir)), mlflow_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        site.scheduling.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.site = site
    routers = (overview_routes, grid_routes, runs_routes, run_routes, samples_routes, login_routes)
    for routes in routers:
        app.include_router(routes(site))

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
