"""Page of the responses of a training step or to a benchmark: one problem at a time, the agents side by side."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards.models.changes import version_of
from dashboards.models.runs.answers import ANY, Filter, StepAnswers
from dashboards.models.runs.tokens import BOUNDS, read_tokens
from dashboards.site import Site, fragment, part
from flows.planning.plans import find_plan
from hacpo_core.store.steps import StepStore

_Number = Annotated[str, Query(pattern=r"^\d{0,9}$")]
"""a number, or "", which an empty field of the form sends: the last step, or no bound"""
_ProblemNumber = Annotated[int, Query(ge=1, le=10**9)]
_Name = Annotated[str, Query(max_length=300)]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page shows: a training step, or a benchmark after a step; the filter; the number of the problem."""

    step: int | None = None
    benchmark: str = ""
    wanted: Filter = field(default_factory=Filter)
    problem: int = 1

    def address(self, **changes: Any) -> str:
        """Parameters of the page's address; defaults are left out."""
        asked = replace(self, **changes)
        own = {"step": "" if asked.step is None else asked.step, "benchmark": asked.benchmark}
        own |= {"problem": asked.problem} if asked.problem > 1 else {}
        parts = {name: value for name, value in asdict(asked.wanted).items() if name != "is_longest_first"}
        order = {"order": "longest"} if asked.wanted.is_longest_first else {}
        return urlencode({name: value for name, value in (own | parts | order).items() if value not in ("", None)})


def _asked(
    step: _Number = "",
    benchmark: _Name = "",
    problem: _ProblemNumber = 1,
    right: _Name = "",
    wrong: _Name = "",
    verdict: Literal["", "correct", "wrong", "unscored"] = "",
    agent: _Name = "",
    tag: _Name = "",
    text: _Name = "",
    order: Literal["", "longest"] = "",
    min_tokens: _Number = "",
    max_tokens: _Number = "",
) -> Asked:
    lengths = (int(bound) if bound else None for bound in (min_tokens, max_tokens))
    wanted = Filter(right, wrong, verdict, agent, tag, text, order == "longest", *lengths)
    return Asked(int(step) if step else None, benchmark, wanted, problem)


_Asked = Annotated[Asked, Depends(_asked)]


def samples_routes(site: Site) -> APIRouter:
    """The page and its updates."""
    router = APIRouter()

    @router.get("/samples/{experiment}")
    def show(request: Request, experiment: str, asked: _Asked) -> Response:
        context = find_answers(site, experiment, asked)
        page = {name: context[name] for name in ("experiment", "asked", "agents", "tags", "benchmarks")}
        return site.page(
            request, "samples/samples.html", **page, any=ANY, answers=fragment("samples/answers.html", **context)
        )

    @router.get("/samples/{experiment}/changes")
    def changes(experiment: str, asked: _Asked, seen: str = "") -> Response:
        return part("samples/answers.html", find_answers(site, experiment, asked), seen)

    @router.get("/samples/{experiment}/tokens")
    def tokens(
        experiment: str, step: Annotated[int, Query(ge=1)], agent: _Name, problem_id: str, sample: int
    ) -> Response:
        plan = find_plan(site.runs.runs_dir, site.runs.root(experiment).name)
        found = read_tokens(plan, step, agent=agent, problem_id=problem_id, sample=sample)
        return HTMLResponse(fragment("samples/tokens.html", pieces=found, bounds=BOUNDS))

    return router


def find_answers(site: Site, experiment: str, asked: Asked = Asked()) -> dict[str, Any]:
    """Template values for one problem.

    Args:
        site: readers.
        experiment: id.
        asked: without a step, or with a step in which the benchmark was not evaluated, the last one is shown; a number
            beyond the end is the last problem.

    Raises:
        UnknownError: there is no such experiment, step or evaluation.
    """
    root, runs_dir = site.runs.root(experiment), site.runs.runs_dir
    progress = site.runs.status(experiment).progress
    evaluations = progress.evaluations if progress is not None else []
    if asked.benchmark:
        steps = sorted({each.step for each in evaluations if each.benchmark == asked.benchmark})
        shown = asked.step if asked.step in steps else steps[-1] if steps else None
    else:
        steps = list(range(1, _last_answered(root) + 1))
        shown = asked.step if asked.step is not None else steps[-1] if steps else None
    answers = StepAnswers((), ())
    if shown is not None and (shown > 0 or asked.benchmark):
        answers = site.answers.read(runs_dir, experiment, shown, asked.benchmark)
    texts = {} if asked.benchmark or not answers.problems else site.answers.problem_texts(runs_dir, experiment)
    selected = answers.select(asked.wanted, texts)
    place = min(asked.problem, len(selected))
    answered = selected[place - 1] if selected else None
    here = replace(asked, step=shown, problem=max(place, 1))
    before, after = (bisect_left(steps, shown), bisect_right(steps, shown)) if shown is not None else (0, 0)
    context: dict[str, Any] = {
        "experiment": experiment,
        "asked": here,
        "polled": replace(here, step=asked.step).address() if asked.step is None and not steps else here.address(),
        "previous": here.address(problem=place - 1) if place > 1 else "",
        "next": here.address(problem=place + 1) if place < len(selected) else "",
        "step_before": here.address(step=steps[before - 1], problem=1) if before > 0 else "",
        "step_after": here.address(step=steps[after], problem=1) if after < len(steps) else "",
        "place": place,
        "num": len(selected),
        "num_all": len(answers.problems),
        "answered": answered,
        "text": (answered.question or texts.get(answered.problem_id, "")) if answered is not None else "",
        "agents": answers.by_strength,
        "tags": answers.tags,
        "benchmarks": tuple(dict.fromkeys(each.benchmark for each in evaluations)),
        "is_live": site.runs.status(experiment).state != "done",
    }
    return context | {"version": version_of(*context.values())}


def _last_answered(root: Path) -> int:
    """Newest step with committed advantages; 0 if there is none."""
    store = StepStore(root)
    last = store.last_step()
    while last and "advantage" not in store.committed(last):
        last -= 1
    return last
