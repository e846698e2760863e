"""What the models said: one problem at a time, everybody's responses side by side."""

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
    """The page of a step's answers, and what changed in it."""
    router = APIRouter()

    @router.get("/samples/{experiment}")
    def show(
        request: Request, experiment: str, step: Step = None, filter: FilterName = "all", problem: _ProblemNumber = 1
    ) -> Response:
        found = find_answers(site, experiment, step, filter, problem)
        own = {name: found[name] for name in ("experiment", "step", "filter")}
        return site.page(request, "samples.html", **own, filters=FILTERS, answers=fragment("answers.html", **found))

    @router.get("/samples/{experiment}/changes")
    def changes(
        experiment: str, step: Step = None, filter: FilterName = "all", problem: _ProblemNumber = 1, seen: str = ""
    ) -> Response:
        return part("answers.html", find_answers(site, experiment, step, filter, problem), seen)

    return router


def find_answers(
    site: Site, experiment: str, step: int | None = None, filter: FilterName = "all", problem: int = 1
) -> dict[str, Any]:
    """What the template shows of a problem.

    Args:
        site: readers.
        experiment: id.
        step: None: the last one that has answers; shown as step 0 where there is none yet.
        filter: of FILTERS.
        problem: its place among those that pass the filter; beyond the end: the last one.

    Raises:
        UnknownError: there is no such experiment, or the step has no complete answers.
    """
    root, runs_dir = site.runs.root(experiment), site.runs.runs_dir
    last = _last_answered(root)
    shown = last if step is None else step
    answers = site.answers.read(runs_dir, experiment, shown) if shown else StepAnswers((), ())
    selected = answers.select(filter)
    place = min(problem, len(selected))
    one = selected[place - 1] if selected else None
    found: dict[str, Any] = {
        "experiment": experiment,
        "step": shown,
        "has_next_step": shown < last,
        "filter": filter,
        "place": place,
        "num": len(selected),
        "num_all": len(answers.problems),
        "one": one,
        "text": site.answers.problem_text(runs_dir, experiment, one.problem_id) if one is not None else "",
        "agents": answers.by_strength,
        "is_live": site.runs.standing(experiment).state != "done",
    }
    return found | {"version": version_of(*found.values())}


def _last_answered(root: Path) -> int:
    """Newest step whose advantages are committed; 0 where there is none."""
    store = StepStore(root)
    last = store.last_step()
    while last and "advantage" not in store.committed(last):
        last -= 1
    return last
