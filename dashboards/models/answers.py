"""What the agents answered in a training step: problem by problem, filtered, with what it did to each learner."""

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
    "disagreement": "agents disagree: one has a right answer where another has none",
    "weaker": "only the weaker agent has a right answer",
    "unscored": "a response without a verdict",
    "longest": "all problems, the longest response first",
}
_MOST_CACHED_STEPS = 8
"""kept in memory"""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a response did to a learner; the ratio is None where its row passed no update."""

    learner: str
    advantage: float
    ratio: float | None
    stopped_share: float

    @property
    def clipped(self) -> str:
        """In words."""
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
    """A problem and everybody's responses to it, agent by agent."""

    problem_id: str
    responses: Mapping[str, tuple[Response, ...]]

    def num_correct(self, agent: str) -> int:
        """Right answers among the agent's."""
        return sum(response.status == "correct" for response in self.responses[agent])

    @property
    def longest(self) -> int:
        """Characters of the longest response."""
        return max((len(r.text) for responses in self.responses.values() for r in responses), default=0)

    @property
    def has_unscored(self) -> bool:
        """Whether any response has no verdict."""
        return any(r.status == "unscored" for responses in self.responses.values() for r in responses)


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """A step's problems in their order, and the agents from the weaker to the stronger (share of right answers)."""

    problems: tuple[Answered, ...]
    by_strength: tuple[str, ...]

    def select(self, name: str) -> tuple[Answered, ...]:
        """Problems that a filter of FILTERS lets through."""
        if name == "longest":
            return tuple(sorted(self.problems, key=lambda one: -one.longest))
        return tuple(one for one in self.problems if self._passes(one, name))

    def _passes(self, one: Answered, name: str) -> bool:
        right = {agent for agent in one.responses if one.num_correct(agent)}
        if name == "disagreement":
            return 0 < len(right) < len(one.responses)
        if name == "weaker":
            return len(one.responses) > 1 and right == {self.by_strength[0]}
        return one.has_unscored if name == "unscored" else True


def group(frame: pd.DataFrame, agents: Sequence[str]) -> StepAnswers:
    """Rows of `flows.runs.samples.step_samples` by problem and agent."""
    found: dict[str, dict[str, list[Response]]] = {}
    for row in frame.to_dict(orient="records"):
        responses = found.setdefault(str(row["problem_id"]), {agent: [] for agent in agents})
        responses[row["agent"]].append(_response({str(name): value for name, value in row.items()}, agents))
    problems = tuple(
        Answered(name, {agent: tuple(own) for agent, own in responses.items()}) for name, responses in found.items()
    )
    strength = {agent: _share_correct(problems, agent) for agent in agents}
    return StepAnswers(problems, tuple(sorted(agents, key=lambda agent: strength[agent])))


def _share_correct(problems: Sequence[Answered], agent: str) -> float:
    scored = [r for one in problems for r in one.responses[agent] if r.status != "unscored"]
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
    """Steps' answers, the last few read kept in memory."""

    def __init__(self) -> None:
        self._answers = lru_cache(_MOST_CACHED_STEPS)(_read)
        self._texts = lru_cache(_MOST_CACHED_STEPS)(_problem_texts)
        self._mutex = threading.Lock()  # two who ask at once read once

    def read(self, runs_dir: Path, experiment: str, step: int) -> StepAnswers:
        """A step's answers.

        Raises:
            UnknownError: the step has no complete answers, or they are torn.
        """
        path = StepStore(experiments_dir(runs_dir) / experiment).folder(step) / MANIFEST
        if not path.is_file():
            raise UnknownError(f"{experiment} has no step {step}")
        with self._mutex:
            return self._answers(runs_dir, experiment, step, path.stat().st_mtime_ns)

    def problem_text(self, runs_dir: Path, experiment: str, problem_id: str) -> str:
        """The problem's text; "" where the data file is not at hand."""
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
        raise UnknownError(f"the answers of step {step} cannot be shown: {error}") from error
