"""What the models said: one problem at a time, everybody's responses side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import Response

from dashboards.answers import FILTERS
from dashboards.listing import UnknownError
from dashboards.site import Site
from hacpo_core.store import StepStore

FilterName = Literal["all", "disagreement", "weaker", "unscored", "longest"]


def samples_routes(site: Site) -> APIRouter:
    """The page of a step's answers."""
    router = APIRouter()

    @router.get("/samples/{experiment}")
    def show(
        request: Request,
        experiment: str,
        step: Annotated[int | None, Query(ge=1, le=10**9)] = None,
        filter: FilterName = "all",
        problem: Annotated[int, Query(ge=1, le=10**9)] = 1,
    ) -> Response:
        root = site.runs.root(experiment)
        last = _last_answered(root)
        shown = last if step is None else step
        if not shown:
            raise UnknownError(f"{experiment} has no complete step yet")
        answers = site.answers.read(site.runs.runs_dir, experiment, shown)
        selected = answers.select(filter)
        place = min(problem, len(selected))
        one = selected[place - 1] if selected else None
        text = site.answers.problem_text(site.runs.runs_dir, experiment, one.problem_id) if one is not None else ""
        return site.page(
            request,
            "samples.html",
            experiment=experiment,
            step=shown,
            last_step=last,
            filter=filter,
            filters=FILTERS,
            place=place,
            num=len(selected),
            num_all=len(answers.problems),
            one=one,
            text=text,
            agents=answers.by_strength,
        )

    return router


def _last_answered(root: Path) -> int:
    """Newest step whose advantages are committed; 0 where there is none."""
    store = StepStore(root)
    last = store.last_step()
    while last and "advantage" not in store.committed(last):
        last -= 1
    return last
