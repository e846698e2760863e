"""Page of the responses of a training step or to a benchmark: one problem at a time, the agents side by side."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from fastapi.params import Query
from starlette.requests import Request
from starlette.responses import Response

from dashboards.models.runs.responses import ANY, Filter, StepResponses, read_step
from dashboards.site import Site, fragment, part, version_of
from hacpo_core.store.steps import StepStore

_Number = Annotated[str, Query(pattern=r"^\d{0,9}$")]
"""a number, or "", which an empty field of the form sends: the last step"""
_ProblemNumber = Annotated[int, Query(ge=1, le=10**9)]
_Name = Annotated[str, Query(max_length=300)]


@dataclass(frozen=True, slots=True)
class SampleView:
    """What the page shows: a training step, or a benchmark after a step; the filter; the number of the problem."""

    step: int | None = None
    benchmark: str = ""
    criteria: Filter = field(default_factory=Filter)
    problem: int = 1

    def address(self, **changes: Any) -> str:
        """Parameters of the page's address; defaults are left out."""
        view = replace(self, **changes)
        parameters = {"step": "" if view.step is None else view.step, "benchmark": view.benchmark}
        parameters |= {"problem": view.problem} if view.problem > 1 else {}
        parameters |= asdict(view.criteria)
        return urlencode({name: value for name, value in parameters.items() if value != ""})


def _sample_view(
    step: _Number = "",
    benchmark: _Name = "",
    problem: _ProblemNumber = 1,
    right: _Name = "",
    wrong: _Name = "",
    verdict: Literal["", "correct", "wrong", "unscored"] = "",
    text: _Name = "",
) -> SampleView:
    criteria = Filter(right, wrong, verdict, text)
    return SampleView(int(step) if step else None, benchmark, criteria, problem)


_View = Annotated[SampleView, Depends(_sample_view)]


def samples_routes(site: Site) -> APIRouter:
    """The page and its updates."""
    router = APIRouter()

    @router.get("/samples/{experiment}")
    def show(request: Request, experiment: str, view: _View) -> Response:
        context = problem_context(site, experiment, view)
        page = {name: context[name] for name in ("experiment", "view", "agents", "benchmarks")}
        return site.page(
            request, "samples/samples.html", **page, any=ANY, responses=fragment("samples/responses.html", **context)
        )

    @router.get("/samples/{experiment}/changes")
    def changes(experiment: str, view: _View, seen: str = "") -> Response:
        return part("samples/responses.html", problem_context(site, experiment, view), seen)

    return router


def problem_context(site: Site, experiment: str, view: SampleView = SampleView()) -> dict[str, Any]:
    """Template values for one problem.

    Args:
        site: readers.
        experiment: id.
        view: without a step, or with a step in which the benchmark was not evaluated, the last one is shown; a number
            beyond the end is the last problem.

    Raises:
        UnknownError: there is no such experiment, step or evaluation.
    """
    root, runs_dir = site.runs.root(experiment), site.runs.runs_dir
    status = site.runs.status(experiment)
    evaluations = status.progress.evaluations if status.progress is not None else []
    evaluated = {evaluation.step for evaluation in evaluations if evaluation.benchmark == view.benchmark}
    steps = sorted(evaluated) if view.benchmark else list(range(1, _last_complete(root) + 1))
    is_known = view.step in steps if view.benchmark else view.step is not None
    shown_step = view.step if is_known else steps[-1] if steps else None
    responses = StepResponses((), ())
    if shown_step is not None and (shown_step > 0 or view.benchmark):
        responses = read_step(runs_dir, experiment, shown_step, view.benchmark)
    problems = responses.select(view.criteria)
    place = min(view.problem, len(problems))
    problem = problems[place - 1] if problems else None
    current = replace(view, step=shown_step, problem=max(place, 1))
    before = [step for step in steps if shown_step is not None and step < shown_step]
    after = [step for step in steps if shown_step is not None and step > shown_step]
    context: dict[str, Any] = {
        "experiment": experiment,
        "view": current,
        "poll_address": current.address(),
        "previous": current.address(problem=place - 1) if place > 1 else "",
        "next": current.address(problem=place + 1) if place < len(problems) else "",
        "step_before": current.address(step=before[-1], problem=1) if before else "",
        "step_after": current.address(step=after[0], problem=1) if after else "",
        "place": place,
        "num": len(problems),
        "num_all": len(responses.problems),
        "problem": problem,
        "agents": responses.by_strength,
        "benchmarks": tuple(dict.fromkeys(evaluation.benchmark for evaluation in evaluations)),
        "is_live": status.state != "done",
    }
    return context | {"version": version_of(*context.values())}


def _last_complete(root: Path) -> int:
    """Newest step with committed advantages; 0 if there is none."""
    store = StepStore(root)
    last = store.last_step()
    while last and "advantage" not in store.committed(last):
        last -= 1
    return last
