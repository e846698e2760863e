"""Table of all runs: the page, its updates, CSV, and notes, archive and deletion."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Query as Parameter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.models.changes import version_of
from dashboards.models.conditions import HELP
from dashboards.models.listing import UnknownError
from dashboards.models.runs_query import DEFAULT_COLUMNS, Query, Row, as_csv
from dashboards.models.runs_table import COLUMNS
from dashboards.pages.forms import chosen_experiments, read_form
from dashboards.site import Site, fragment, part
from flows.records.deletion import delete_experiment, deletion_preview
from flows.records.notes import Notes, read_notes, write_notes
from flows.service.experiment_state import state_of
from hacpo_core.errors import HacpoError

FIRST_ROWS = 200
"""rows of a page; more on demand"""
_TEXT = Annotated[str, Parameter(max_length=2000)]
_NOTES = {"archive": "archived", "unarchive": "no longer archived", "tag": "tagged", "untag": "tag removed"}


def _query(
    q: _TEXT = "", columns: _TEXT = "", add: _TEXT = "", order: _TEXT = "", group: _TEXT = "", archived: bool = False
) -> Query:
    chosen_columns = [*_names(columns), *_names(add)] or list(DEFAULT_COLUMNS)
    return Query(q, tuple(dict.fromkeys(chosen_columns)), order, _names(group), archived)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


_Query = Annotated[Query, Depends(_query)]
_Most = Annotated[int, Parameter(ge=1, le=100_000)]


def address(query: Query, **changes: Any) -> str:
    """Parameters of a query's address, with changes; defaults are left out."""
    query = replace(query, **changes)
    columns = "" if query.columns == DEFAULT_COLUMNS else ",".join(query.columns)
    parameters = {
        "q": query.conditions,
        "columns": columns,
        "order": query.order,
        "group": ",".join(query.group),
        "archived": "true" if query.has_archived else "",
    }
    return urlencode({name: value for name, value in parameters.items() if value})


@dataclass(frozen=True, slots=True)
class NoteOutcome:
    """Outcome of an action on a run; `problem` is "" if it succeeded."""

    experiment: str
    problem: str = ""


def runs_routes(site: Site) -> APIRouter:
    """The page, its updates, and actions."""
    router = APIRouter()

    @router.get("/runs")
    def show(request: Request, query: _Query, most: _Most = FIRST_ROWS) -> Response:
        return site.page(
            request,
            "runs/runs.html",
            table=fragment("runs/runs_table.html", **_context(site, query, most)),
            query=query,
            column_names=site.tables.column_names(),
            meanings=COLUMNS,
            help=HELP,
        )

    @router.get("/runs/table")
    def table(query: _Query, most: _Most = FIRST_ROWS, seen: str = "") -> Response:
        response = part("runs/runs_table.html", _context(site, query, most), seen)
        if not seen:  # asked for by a person, not by the page's own timer
            response.headers["hx-push-url"] = f"/runs?{address(query)}"
        return response

    @router.get("/runs.csv")
    def table_csv(query: _Query) -> Response:
        table = site.tables.table(query, site.scheduling.view())
        headers = {"content-disposition": 'attachment; filename="hacpo_runs.csv"'}
        return Response(as_csv(table), media_type="text/csv; charset=utf-8", headers=headers)

    @router.post("/runs/notes")
    async def note(request: Request) -> Response:
        form = await read_form(request)
        action, experiments = form.get("action", [""])[0], chosen_experiments(form)
        text = form.get("text", [""])[0]
        if action not in (*_NOTES, "note", "preview", "delete"):
            raise HTTPException(422, "no such action")
        names = set(site.runs.names())
        if not names.issuperset(experiments):
            raise UnknownError("there is no such experiment")
        context = await run_in_threadpool(_act, site, action, experiments, text)
        headers = {} if action == "preview" else {"hx-trigger": "runs-changed"}
        return HTMLResponse(fragment("runs/runs_outcome.html", **context), headers=headers)

    return router


def _context(site: Site, query: Query, max_rows: int) -> dict[str, Any]:
    """Template values for the table."""
    table = site.tables.table(query, site.scheduling.view(wait_s=0.2))
    heads = [
        {
            "name": column,
            "is_sorted": query.order.removeprefix("-") == column,
            "is_descending": query.order == f"-{column}",
            "address": address(query, order=column if query.order == f"-{column}" else f"-{column}"),
            "without": address(query, columns=tuple(c for c in query.columns if c != column)),
        }
        for column in table.columns
    ]
    context: dict[str, Any] = {
        "table": replace(table, rows=table.rows[:max_rows]),
        "num_found": len(table.rows),
        "heads": heads,
        "query": query,
        "address": address(query),
        "more": f"{address(query)}&most={10 * max_rows}" if max_rows < len(table.rows) else "",
        "members": {row.key: address(replace(query, group=()), conditions=_of_group(query, row)) for row in table.rows}
        if query.group
        else {},
    }
    return context | {"version": version_of(*context.values())}


def _of_group(query: Query, row: Row) -> str:
    """Conditions that choose the runs of a group."""
    values = zip(query.group, json.loads(row.key), strict=True)
    group_conditions = [shlex.quote(f"{column}=={value}") for column, value in values]
    return " ".join([query.conditions, *group_conditions]).strip()


def _act(site: Site, action: str, experiments: Sequence[str], text: str) -> Mapping[str, Any]:
    """Template values for the outcome of an action."""
    if action == "preview":
        grids = site.runs.grids()
        return {
            "previews": [deletion_preview(site.runs.root(name), grids) for name in experiments],
            "outcomes": [],
            "done": "",
        }
    outcomes = [_one(site, action, name, text) for name in experiments]
    summaries = {"note": "note kept", "delete": "deleted"} | _NOTES
    return {"previews": [], "outcomes": outcomes, "done": summaries[action]}


def _one(site: Site, action: str, name: str, text: str) -> NoteOutcome:
    root = site.runs.root(name)
    try:
        if action == "delete":
            run = site.scheduling.view().runs.get(name)
            state = state_of(site.runs.status(name), run, site.runs.unavailable(name)).state
            if state in ("running", "queued"):
                return NoteOutcome(name, f"it is {state}; cancel it first")
            delete_experiment(root)
        else:
            write_notes(root, _with_change(read_notes(root), action, text))
    except HacpoError as error:
        return NoteOutcome(name, site.message(error))
    return NoteOutcome(name)


def _with_change(notes: Notes, action: str, text: str) -> Notes:
    if action == "note":
        return notes.with_note(text)
    if action in ("archive", "unarchive"):
        return replace(notes, is_archived=action == "archive")
    return notes.with_tags(add=text.split()) if action == "tag" else notes.with_tags(remove=text.split())
