"""Shared by all pages: data readers, templates and links."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from dashboards import formats
from dashboards.charts import CHART_SCRIPTS
from dashboards.charts import STATIC as LOOK
from dashboards.charts.charts import Chart
from dashboards.charts.pictures import svg
from dashboards.models.grids.matrix import GridComparisons
from dashboards.models.listing import Runs, UnknownError
from dashboards.models.scheduling import Scheduling
from dashboards.report.tables import with_interval
from dashboards.security import PICTURE_CSP, is_loopback
from flows.records.mlflow_address import VIEW_KEY, read_state
from flows.service.prefect_server import find_server

HERE = Path(__file__).parent
STATIC_FOLDERS = (HERE / "static", LOOK)
"""files that browsers load: the page's own, and those that it shares with reports"""


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of other services' pages, "" for one that does not run or that the visitor cannot reach."""

    prefect: str = ""
    mlflow: str = ""
    mlflow_runs: str = ""
    """its table of runs, with chosen columns"""


@dataclass(slots=True)
class Site:
    """Data readers of one runs folder, and page rendering."""

    runs: Runs
    scheduling: Scheduling
    mlflow_url: Callable[[], str] = lambda: ""
    comparisons: GridComparisons = field(init=False)

    def __post_init__(self) -> None:
        self.comparisons = GridComparisons(self.runs.root_of)

    def message(self, error: Exception) -> str:
        """Text of an error, with paths relative to the runs folder: the page names no folder of this machine."""
        return str(error).replace(f"{self.runs.runs_dir.absolute()}/", "")

    def links(self, request: Request) -> Links:
        """Current addresses of Prefect and MLflow.

        A service on loopback is reachable only if the visitor opened the dashboard under a loopback name.
        """
        server = find_server(self.runs.runs_dir)
        is_here = is_loopback(request.url.hostname or "")

        def link(url: str) -> str:
            return url if is_here or not is_loopback(urlsplit(url).hostname or "") else ""

        mlflow = link(self.mlflow_url())
        return Links(link(server.url if server is not None else ""), mlflow, mlflow and mlflow + self._mlflow_view())

    def _mlflow_view(self) -> str:
        """Path of MLflow's table of the grids' results, else of its runs; its start page if it has neither."""
        for folder in (self.runs.runs_dir, *map(self.runs.root, self.runs.names()[:1])):
            if experiment := read_state(folder).get("experiment"):
                return f"/#/experiments/{quote(str(experiment))}/runs?viewStateShareKey={VIEW_KEY}"
        return ""

    def page(self, request: Request, template: str, *, status_code: int = 200, **context: Any) -> HTMLResponse:
        """Render a whole page; without log-in it shows no links."""
        links = self.links(request) if request.state.is_admitted else Links()
        text = environment().get_template(template).render(links=links, here=request.url.path, **context)
        return HTMLResponse(text, status_code)


def version_of(*values: object) -> str:
    """Version of the content of a page part: equal for equal values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


def fragment(template: str, **context: Any) -> Markup:
    """Render a part of a page, without the surrounding layout."""
    return Markup(environment().get_template(template).render(**context))


def part(template: str, context: Mapping[str, Any], seen: str) -> Response:
    """Response for a part of a page that is polled.

    Args:
        template: of the part.
        context: for the template; `version` identifies the content.
        seen: version that the browser has; if it is current, the response is empty (204).
    """
    return Response(status_code=204) if context["version"] == seen else HTMLResponse(fragment(template, **context))


FILE_KINDS = Literal["json", "svg", "csv"]
"""forms of a chart: what charts.js asks for, and downloads"""


def chart_response(chart: Chart | None, kind: FILE_KINDS, seen: str = "") -> Response:
    """A chart in one of its forms.

    Args:
        chart: None if nothing is measured yet.
        kind: "json" for the page's own script, else a download.
        seen: version that the browser has; if it is current, the JSON response is empty (204).

    Raises:
        UnknownError: a download of nothing.
    """
    if kind == "json":
        spec = chart.vega_lite() if chart is not None else None
        version = version_of(spec)
        return Response(status_code=204) if version == seen else JSONResponse({"version": version, "spec": spec})
    if chart is None:
        raise UnknownError("nothing has been measured yet")
    content, media_type = (svg(chart), "image/svg+xml") if kind == "svg" else (chart.csv(), "text/csv; charset=utf-8")
    headers = {
        "content-disposition": f'attachment; filename="hacpo_{chart.name}.{kind}"',
        "content-security-policy": PICTURE_CSP,
    }
    return Response(content, media_type=media_type, headers=headers)


@cache
def environment() -> Environment:
    """The Jinja environment: everything is escaped, and an undefined name is an error."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., str]] = {
        "duration": formats.duration,
        "hours": formats.hours,
        "count": formats.count,
        "counted": formats.counted,
        "prose": _prose,
        "score": formats.number_text,
        "short": formats.short,
        "signed": formats.signed,
        "clock": formats.clock,
        "path": lambda text: quote(str(text), safe=""),
        "version": version_of,
    }
    templates.filters |= dict(filters)
    templates.globals |= {"asset": asset, "with_interval": with_interval}
    templates.globals["chart_scripts"] = CHART_SCRIPTS
    return templates


def _prose(text: str) -> Markup:
    """A message of ours, with its commands as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def asset(name: str) -> str:
    """Address of a static file; it changes with the content, so that browsers may cache it."""
    folder = next(folder for folder in STATIC_FOLDERS if (folder / name).is_file())
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"
