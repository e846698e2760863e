"""The agents' responses in a training step or on a benchmark, by problem, with filters and effects on each learner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.models.listing import UnknownError
from flows.planning.plans import find_plan
from flows.records.files import experiments_dir
from flows.runs.samples import benchmark_samples, step_samples
from hacpo_core.errors import HacpoError
from hacpo_core.store.steps import MANIFEST, StepStore

ANY = "any"
"""stands for some agent in `Filter.right` and `Filter.wrong`"""
_MAX_CACHED_STEPS = 8
"""number of steps kept in memory"""


@dataclass(frozen=True, slots=True)
class Effect:
    """How a learner trained on a response; `ratio` is None if the response was in no update."""

    learner: str
    advantage: float
    ratio: float | None
    stopped_share: float

    @property
    def clipped(self) -> str:
        """Whether the loss was clipped, as text."""
        if self.ratio is None:
            return "not used"
        if self.stopped_share <= 0:
            return "not clipped"
        return "clipped" if self.stopped_share >= 1 else f"{self.stopped_share:.0%} of its tokens clipped"


@dataclass(frozen=True, slots=True)
class Response:
    """One agent's response; `status` is correct, wrong or unscored."""

    agent: str
    sample: int
    text: str
    num_tokens: int
    is_cut: bool
    status: str
    extracted: str
    reason: str
    effects: tuple[Effect, ...]
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which problems are shown; "" means any.

    Attributes:
        right: an agent that has a correct response, or ANY.
        wrong: another agent that has a wrong response and no correct one, or ANY.
        verdict, text: some response has this verdict and contains this text, in any case; the text may also stand in
            the problem's id or in the problem.
    """

    right: str = ""
    wrong: str = ""
    verdict: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ProblemResponses:
    """A problem and the responses to it, by agent; `question` and `gold` are "" where they are not stored with them."""

    problem_id: str
    responses: Mapping[str, tuple[Response, ...]]
    question: str = ""
    gold: str = ""

    def num_correct(self, agent: str) -> int:
        """Number of the agent's correct responses."""
        return sum(response.status == "correct" for response in self.responses[agent])

    def is_only_wrong(self, agent: str) -> bool:
        """Whether the agent has a wrong response and no correct one."""
        return not self.num_correct(agent) and any(response.status == "wrong" for response in self.responses[agent])


@dataclass(frozen=True, slots=True)
class StepResponses:
    """The problems of a step in order, and the agents in ascending order of their share of correct responses."""

    problems: tuple[ProblemResponses, ...]
    by_strength: tuple[str, ...]

    def select(self, criteria: Filter) -> tuple[ProblemResponses, ...]:
        """Problems that a filter lets through."""
        selection, words = [], criteria.text.casefold()
        for problem in self.problems:
            elsewhere = f"{problem.problem_id}\n{problem.question}".casefold()
            responses = (r for agent_responses in problem.responses.values() for r in agent_responses)
            chosen = (r for r in responses if criteria.verdict in ("", r.status))
            if any(words in elsewhere or words in r.text.casefold() for r in chosen) and _disagrees(problem, criteria):
                selection.append(problem)
        return tuple(selection)


def _disagrees(problem: ProblemResponses, criteria: Filter) -> bool:
    """Whether an agent is right, and another one wrong, as the filter asks."""
    right = [agent for agent in problem.responses if criteria.right in (agent, ANY) and problem.num_correct(agent)]
    wrong = [agent for agent in problem.responses if criteria.wrong in (agent, ANY) and problem.is_only_wrong(agent)]
    return (bool(right) or not criteria.right) and (bool(wrong) or not criteria.wrong)


def group(frame: pd.DataFrame, agents: Sequence[str]) -> StepResponses:
    """Group rows of `flows.runs.samples` by problem and agent."""
    by_problem: dict[str, dict[str, list[Response]]] = {}
    texts: dict[str, tuple[str, str]] = {}
    for row in frame.to_dict(orient="records"):
        responses = by_problem.setdefault(str(row["problem_id"]), {agent: [] for agent in agents})
        responses[row["agent"]].append(_response({str(name): value for name, value in row.items()}, agents))
        is_known = isinstance(row.get("question"), str)  # nan if the file of the problems is gone
        texts[str(row["problem_id"])] = (str(row["question"]), str(row["answer"])) if is_known else ("", "")
    problems = tuple(
        ProblemResponses(
            name, {agent: tuple(agent_responses) for agent, agent_responses in responses.items()}, *texts[name]
        )
        for name, responses in by_problem.items()
    )
    strength = {agent: _share_correct(problems, agent) for agent in agents}
    return StepResponses(problems, tuple(sorted(agents, key=lambda agent: strength[agent])))


def _share_correct(problems: Sequence[ProblemResponses], agent: str) -> float:
    scored = [r for problem in problems for r in problem.responses[agent] if r.status != "unscored"]
    return sum(r.status == "correct" for r in scored) / len(scored) if scored else 0.0


def _response(row: Mapping[str, Any], agents: Sequence[str]) -> Response:
    effects = []
    for k in agents:
        advantage = float(row.get(f"advantage_for_{k}", math.nan))
        if math.isnan(advantage):  # the learner cannot train on it, or it answers a benchmark
            continue
        ratio = float(row.get(f"ratio_for_{k}", math.nan))
        is_used = not math.isnan(ratio)
        stopped = float(row[f"stopped_for_{k}"]) if is_used else 0.0
        effects.append(Effect(k, advantage, ratio if is_used else None, stopped))
    extracted = row["extracted"]
    return Response(
        agent=row["agent"],
        sample=int(row["sample"]),
        text=str(row["text"]),
        num_tokens=int(row["num_tokens"]),
        is_cut=row["finish_reason"] == "length",
        status=row["status"],
        extracted=extracted if isinstance(extracted, str) else "",
        reason=reason if isinstance(reason := row.get("reason"), str) else "",
        effects=tuple(effects),
        tag=str(row.get("tag", "")),
    )


def read_step(runs_dir: Path, experiment: str, step: int, benchmark: str = "") -> StepResponses:
    """The responses of a training step, or with a benchmark those to its problems after that step.

    Raises:
        UnknownError: there are none, or they are incomplete or damaged.
    """
    path = StepStore(experiments_dir(runs_dir) / experiment).folder(step) / MANIFEST
    if not path.is_file():
        raise UnknownError(f"{experiment} has no step {step}")
    return _read(runs_dir, experiment, step, benchmark, path.stat().st_mtime_ns)


@lru_cache(_MAX_CACHED_STEPS)
def _read(runs_dir: Path, experiment: str, step: int, benchmark: str, _changed_ns: int) -> StepResponses:
    try:
        plan = find_plan(runs_dir, experiment)
        frame = benchmark_samples(plan, benchmark, step) if benchmark else step_samples(plan, step)
        return group(frame, list(plan.config.pair.agents))
    except HacpoError as error:
        raise UnknownError(f"the responses of step {step} cannot be shown: {error}") from error
