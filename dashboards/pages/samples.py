"""Page of a step's responses: one problem at a time, the agents side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.answers import FILTERS, StepAnswers
from dashboards.models.changes import version_of
from dashboards.site import Site, fragment, part
from hacpo_core.store.steps import StepStore

Step = Annotated[int | None, Query(ge=1, le=10**9)]
FilterName = Literal["all", "disagreement", "weaker", "unscored", "longest"]
_ProblemNumber = Annotated[int, Query(ge=1, le=10**9)]


def samples_routes(site: Site) -> APIRouter:
    """The page and its updates."""
    router = APIRouter()

    @router.get("/samples/{experiment}")
    def show(
        request: Request, experiment: str, step: Step = None, filter: FilterName = "all", problem: _ProblemNumber = 1
    ) -> Response:
        context = find_answers(site, experiment, step, filter, problem)
        page = {name: context[name] for name in ("experiment", "step", "filter")}
        return site.page(request, "samples.html", **page, filters=FILTERS, answers=fragment("answers.html", **context))

    @router.get("/samples/{experiment}/changes")
    def changes(
        experiment: str, step: Step = None, filter: FilterName = "all", problem: _ProblemNumber = 1, seen: str = ""
    ) -> Response:
        return part("answers.html", find_answers(site, experiment, step, filter, problem), seen)

    return router


def find_answers(
    site: Site, experiment: str, step: int | None = None, filter: FilterName = "all", problem: int = 1
) -> dict[str, Any]:
    """Template values for one problem of a step.

    Args:
        site: readers.
        experiment: id.
        step: training step; None: the last one with advantages, or 0 if there is none yet.
        filter: key of FILTERS.
        problem: number of the problem among the filtered ones, from 1; beyond the end: the last one.

    Raises:
        UnknownError: there is no such experiment, or the step is incomplete.
    """
    root, runs_dir = site.runs.root(experiment), site.runs.runs_dir
    last = _last_answered(root)
    shown = last if step is None else step
    answers = site.answers.read(runs_dir, experiment, shown) if shown else StepAnswers((), ())
    selected = answers.select(filter)
    place = min(problem, len(selected))
    answered = selected[place - 1] if selected else None
    context: dict[str, Any] = {
        "experiment": experiment,
        "step": shown,
        "has_next_step": shown < last,
        "filter": filter,
        "place": place,
        "num": len(selected),
        "num_all": len(answers.problems),
        "answered": answered,
        "text": site.answers.problem_text(runs_dir, experiment, answered.problem_id) if answered is not None else "",
        "agents": answers.by_strength,
        "is_live": site.runs.standing(experiment).state != "done",
    }
    return context | {"version": version_of(*context.values())}


def _last_answered(root: Path) -> int:
    """Newest step with committed advantages; 0 if there is none."""
    store = StepStore(root)
    last = store.last_step()
    while last and "advantage" not in store.committed(last):
        last -= 1
    return last
