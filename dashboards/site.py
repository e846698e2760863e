"""What all pages share: the readers behind them, their templates and their links."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards import formats
from dashboards.models.answers import AnswerReader
from dashboards.models.changes import Changes, version_of
from dashboards.models.curves import CurveReader
from dashboards.models.listing import Runs
from dashboards.models.scheduling import Scheduling
from dashboards.security import is_loopback
from experiments.report.tables import with_interval
from flows.service.server import find_server

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Link:
    """A page of others, "" where it does not run; one on loopback opens on the machine alone that serves it."""

    url: str = ""
    is_reachable: bool = False

    def to(self, path: str) -> Link:
        """A page below it."""
        return replace(self, url=f"{self.url}{path}") if self.url else self


@dataclass(frozen=True, slots=True)
class Links:
    """Pages of others."""

    prefect: Link = Link()
    mlflow: Link = Link()


@dataclass(slots=True)
class Site:
    """Readers and templates of one runs folder's page."""

    runs: Runs
    scheduling: Scheduling
    mlflow_url: Callable[[], str] = lambda: ""
    curves: CurveReader = field(default_factory=CurveReader)
    answers: AnswerReader = field(default_factory=AnswerReader)
    _changes: dict[str, Changes] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def changes(self, name: str) -> Changes:
        """Versions of a page's parts, by the page's name; names come from the listing, so there are few."""
        with self._mutex:
            return self._changes.setdefault(name, Changes())

    def links(self, request: Request) -> Links:
        """Where Prefect and MLflow listen now; by the name that a visitor has for this page, he gets there or not."""
        server = find_server(self.runs.runs_dir)
        is_here = is_loopback(request.url.hostname or "")

        def link(url: str) -> Link:
            return Link(url, is_here or not is_loopback(urlsplit(url).hostname or ""))

        return Links(link(server.url if server is not None else ""), link(self.mlflow_url()))

    def page(self, request: Request, template: str, *, status_code: int = 200, **context: Any) -> HTMLResponse:
        """A whole page. Who has not logged in sees nothing of the folder around it."""
        visitor = request.state.visitor
        links = self.links(request) if visitor.is_admitted else Links()
        own = {"csrf": visitor.csrf, "is_admitted": visitor.is_admitted, "links": links}
        text = environment().get_template(template).render(**own, runs_dir=str(self.runs.runs_dir), **context)
        return HTMLResponse(text, status_code)


def fragment(template: str, **context: Any) -> Markup:
    """A part of a page, without what surrounds it."""
    return Markup(environment().get_template(template).render(**context))


def part(template: str, context: Mapping[str, Any], seen: str) -> Response:
    """A part of a page that asks again and again.

    Args:
        template: of the part.
        context: for the template; `version` names what it shows.
        seen: version that the browser has; if it is the newest, the answer is empty.
    """
    return Response(status_code=204) if context["version"] == seen else HTMLResponse(fragment(template, **context))


def macro(template: str, name: str) -> Callable[..., str]:
    """A macro of a template, to render many small parts without much ado."""
    found: Callable[..., str] = getattr(environment().get_template(template).module, name)
    return found


@cache
def environment() -> Environment:
    """Templates: everything is escaped, and a name that is not there is an error."""
    made = Environment(
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
        "score": formats.score,
        "short": formats.short,
        "path": lambda text: quote(str(text), safe=""),
        "oob": _out_of_band,
        "version": version_of,
    }
    made.filters |= dict(filters)
    made.globals |= {"asset": asset, "with_interval": with_interval}
    return made


def _out_of_band(cell: Markup) -> Markup:
    """A part that finds its place in the page by its id."""
    return Markup(str(cell).replace("<div ", '<div hx-swap-oob="true" ', 1))


@cache
def asset(name: str) -> str:
    """Address of a static file, another one whenever its content is, so that browsers may keep it."""
    digest = hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"
