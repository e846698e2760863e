"""The agents' responses in a training step, by problem, with filters and the effect on each learner."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.models.listing import UnknownError
from flows.planning.plans import find_plan
from flows.records.folders import experiments_dir
from flows.runs.samples import step_samples
from hacpo_core.data.training import load_training
from hacpo_core.errors import HacpoError
from hacpo_core.store.steps import MANIFEST, StepStore

_log = logging.getLogger(__name__)
FILTERS = {
    "all": "all problems",
    "disagreement": "some agents have a correct response, others none",
    "weaker": "only the weakest agent has a correct response",
    "unscored": "a response without a verdict",
    "longest": "all problems, longest response first",
}
_MOST_CACHED_STEPS = 8
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
    is_cut: bool
    status: str
    extracted: str
    reason: str
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A problem and the responses to it, by agent."""

    problem_id: str
    responses: Mapping[str, tuple[Response, ...]]

    def num_correct(self, agent: str) -> int:
        """Number of the agent's correct responses."""
        return sum(response.status == "correct" for response in self.responses[agent])

    @property
    def longest(self) -> int:
        """Length of the longest response, characters."""
        return max((len(r.text) for responses in self.responses.values() for r in responses), default=0)

    @property
    def has_unscored(self) -> bool:
        """Whether any response is unscored."""
        return any(r.status == "unscored" for responses in self.responses.values() for r in responses)


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """The problems of a step in order, and the agents in ascending order of their share of correct responses."""

    problems: tuple[Answered, ...]
    by_strength: tuple[str, ...]

    def select(self, name: str) -> tuple[Answered, ...]:
        """Problems selected by a filter (key of FILTERS)."""
        if name == "longest":
            return tuple(sorted(self.problems, key=lambda problem: -problem.longest))
        return tuple(problem for problem in self.problems if self._passes(problem, name))

    def _passes(self, problem: Answered, name: str) -> bool:
        correct = {agent for agent in problem.responses if problem.num_correct(agent)}
        if name == "disagreement":
            return 0 < len(correct) < len(problem.responses)
        if name == "weaker":
            return len(problem.responses) > 1 and correct == {self.by_strength[0]}
        return problem.has_unscored if name == "unscored" else True


def group(frame: pd.DataFrame, agents: Sequence[str]) -> StepAnswers:
    """Group the rows of `flows.runs.samples.step_samples` by problem and agent."""
    by_problem: dict[str, dict[str, list[Response]]] = {}
    for row in frame.to_dict(orient="records"):
        responses = by_problem.setdefault(str(row["problem_id"]), {agent: [] for agent in agents})
        responses[row["agent"]].append(_response({str(name): value for name, value in row.items()}, agents))
    problems = tuple(
        Answered(name, {agent: tuple(own) for agent, own in responses.items()})
        for name, responses in by_problem.items()
    )
    strength = {agent: _share_correct(problems, agent) for agent in agents}
    return StepAnswers(problems, tuple(sorted(agents, key=lambda agent: strength[agent])))


def _share_correct(problems: Sequence[Answered], agent: str) -> float:
    scored = [r for problem in problems for r in problem.responses[agent] if r.status != "unscored"]
    return sum(r.status == "correct" for r in scored) / len(scored) if scored else 0.0


def _response(row: Mapping[str, Any], agents: Sequence[str]) -> Response:
    effects = []
    for k in agents:
        ratio = float(row.get(f"ratio_for_{k}", math.nan))
        is_used = not math.isnan(ratio)
        stopped = float(row[f"stopped_for_{k}"]) if is_used else 0.0
        effects.append(Effect(k, float(row[f"advantage_for_{k}"]), ratio if is_used else None, stopped))
    extracted = row["extracted"]
    return Response(
        agent=row["agent"],
        sample=int(row["sample"]),
        text=str(row["text"]),
        is_cut=row["finish_reason"] == "length",
        status=row["status"],
        extracted=extracted if isinstance(extracted, str) else "",
        reason=row["reason"] if isinstance(row["reason"], str) else "",
        effects=tuple(effects),
    )


class AnswerReader:
    """Reads the responses of steps; keeps the last few in memory."""

    def __init__(self) -> None:
        self._answers = lru_cache(_MOST_CACHED_STEPS)(_read)
        self._texts = lru_cache(_MOST_CACHED_STEPS)(_problem_texts)
        self._mutex = threading.Lock()  # concurrent requests read only once

    def read(self, runs_dir: Path, experiment: str, step: int) -> StepAnswers:
        """The responses of a step.

        Raises:
            UnknownError: the step does not exist, is incomplete or corrupt.
        """
        path = StepStore(experiments_dir(runs_dir) / experiment).folder(step) / MANIFEST
        if not path.is_file():
            raise UnknownError(f"{experiment} has no step {step}")
        with self._mutex:
            return self._answers(runs_dir, experiment, step, path.stat().st_mtime_ns)

    def problem_text(self, runs_dir: Path, experiment: str, problem_id: str) -> str:
        """Text of a problem; "" if the data file is not available."""
        with self._mutex:
            return self._texts(runs_dir, experiment).get(problem_id, "")


def _problem_texts(runs_dir: Path, experiment: str) -> Mapping[str, str]:
    try:
        problems = load_training(find_plan(runs_dir, experiment).config.data).problems
    except (HacpoError, OSError) as error:
        _log.info("problems are shown without their texts: %s", error)
        return {}
    return {problem.id: problem.messages[-1].content for problem in problems}


def _read(runs_dir: Path, experiment: str, step: int, _version: int) -> StepAnswers:
    try:
        plan = find_plan(runs_dir, experiment)
        return group(step_samples(plan, step), list(plan.config.pair.agents))
    except HacpoError as error:
        raise UnknownError(f"the responses of step {step} cannot be shown: {error}") from error
