"""The agents' responses in a training step or on a benchmark, by problem, with filters and effects on each learner."""

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
    """A problem with the responses to it by agent: rows of `flows.runs.samples` (None: unknown), each with `effects`.

    `question` and `gold` are None where they are not stored with the responses and the file of the problems is gone.
    """

    problem_id: str
    question: str | None
    gold: str | None
    responses: Mapping[str, Sequence[Mapping[str, Any]]]

    def num_correct(self, agent: str) -> int:
        """Number of the agent's correct responses."""
        return sum(response["status"] == "correct" for response in self.responses[agent])

    def is_only_wrong(self, agent: str) -> bool:
        """Whether the agent has a wrong response and no correct one."""
        return not self.num_correct(agent) and any(response["status"] == "wrong" for response in self.responses[agent])


@dataclass(frozen=True, slots=True)
class StepResponses:
    """The problems of a step in order, and the agents in ascending order of their share of correct responses."""

    problems: tuple[ProblemResponses, ...]
    by_strength: tuple[str, ...]

    def select(self, criteria: Filter) -> tuple[ProblemResponses, ...]:
        """Problems that a filter lets through."""
        selection, words = [], criteria.text.casefold()
        for problem in self.problems:
            elsewhere = f"{problem.problem_id}\n{problem.question or ''}".casefold()
            responses = (r for agent_responses in problem.responses.values() for r in agent_responses)
            texts = (r["text"].casefold() for r in responses if criteria.verdict in ("", r["status"]))
            if any(words in elsewhere or words in text for text in texts) and _disagrees(problem, criteria):
                selection.append(problem)
        return tuple(selection)


def _disagrees(problem: ProblemResponses, criteria: Filter) -> bool:
    """Whether an agent is right, and another one wrong, as the filter asks."""
    right = [agent for agent in problem.responses if criteria.right in (agent, ANY) and problem.num_correct(agent)]
    wrong = [agent for agent in problem.responses if criteria.wrong in (agent, ANY) and problem.is_only_wrong(agent)]
    return (bool(right) or not criteria.right) and (bool(wrong) or not criteria.wrong)


def group(frame: pd.DataFrame, agents: Sequence[str]) -> StepResponses:
    """Group rows of `flows.runs.samples` by problem and agent."""
    by_problem: dict[str, dict[str, list[dict[str, Any]]]] = {}
    rows: list[Any] = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    for row in rows:
        effects = [_effect(row, learner) for learner in agents if row.get(f"advantage_for_{learner}") is not None]
        responses = by_problem.setdefault(row["problem_id"], {agent: [] for agent in agents})
        responses[row["agent"]].append({**row, "effects": effects})
    texts = {row["problem_id"]: (row.get("question"), row.get("answer")) for row in rows}
    problems = tuple(ProblemResponses(name, *texts[name], responses) for name, responses in by_problem.items())
    scored = frame[frame.status != "unscored"]
    strength = (scored.status == "correct").groupby(scored.agent).mean().to_dict()
    return StepResponses(problems, tuple(sorted(agents, key=lambda agent: strength.get(agent, 0.0))))


def _effect(row: Mapping[Any, Any], learner: str) -> dict[str, Any]:
    """How a learner trained on a response; the ratio is None if it was in no update."""
    ratio, stopped = row.get(f"ratio_for_{learner}"), row.get(f"stopped_for_{learner}") or 0.0
    clipped = "not clipped" if stopped <= 0 else "clipped" if stopped >= 1 else f"{stopped:.0%} of its tokens clipped"
    if ratio is None:
        clipped = "not used"
    return {"learner": learner, "advantage": row[f"advantage_for_{learner}"], "ratio": ratio, "clipped": clipped}


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
