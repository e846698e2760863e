"""An agent's evaluations during one training, and its curve."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboards.models.grids.cells import StatusOf
from flows.records.gridfile import GridCell
from flows.records.progress import Evaluation, Spent


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of a training curve, mean over seeds; `half_width` is of the 95 % interval, nan with one seed."""

    step: int
    tokens: float
    gpu_hours: float
    hours: float
    value: float
    half_width: float


@dataclass(frozen=True, slots=True)
class AgentEvaluations:
    """An agent's evaluations for one method and seed; `last` is the final step of a complete run, else None."""

    evaluations: tuple[Evaluation, ...]
    last: int | None

    def value(self, step: int | None, benchmarks: Iterable[str]) -> float:
        """Mean over benchmarks after a step; nan if one is missing."""
        values = {evaluation.benchmark: evaluation.value for evaluation in self.evaluations if evaluation.step == step}
        return statistics.fmean(values.get(name, math.nan) for name in benchmarks)


def evaluations_of(cell: GridCell, status_of: StatusOf) -> AgentEvaluations:
    """An agent's evaluations in the experiment of a cell."""
    status = status_of(cell.experiment)
    if status.progress is None:
        return AgentEvaluations((), None)
    evaluations = tuple(evaluation for evaluation in status.progress.evaluations if evaluation.agent == cell.agent)
    return AgentEvaluations(evaluations, status.progress.num_steps if status.state == "done" else None)


def path_of(team: Sequence[AgentEvaluations], benchmarks: Sequence[str]) -> dict[int, CurvePoint]:
    """Points of one seed, at the steps where every agent was evaluated on every benchmark."""
    tables = [_by_step(agent) for agent in team]
    points = {}
    for step in sorted(tables[0]):
        evaluations_of_agents = [table.get(step, {}) for table in tables]
        if not all(name in agent_evaluations for agent_evaluations in evaluations_of_agents for name in benchmarks):
            continue
        value = statistics.fmean(
            statistics.fmean(agent_evaluations[name].value for name in benchmarks)
            for agent_evaluations in evaluations_of_agents
        )
        if math.isnan(value):
            continue
        spent = Spent.sum(next(iter(agent_evaluations.values())).spent for agent_evaluations in evaluations_of_agents)
        points[step] = CurvePoint(step, spent.tokens, spent.gpu_s / 3600, spent.seconds / 3600, value, math.nan)
    return points


def _by_step(agent: AgentEvaluations) -> dict[int, dict[str, Evaluation]]:
    evaluations: dict[int, dict[str, Evaluation]] = {}
    for evaluation in agent.evaluations:
        evaluations.setdefault(evaluation.step, {})[evaluation.benchmark] = evaluation
    return evaluations


def last_of(agent: AgentEvaluations) -> Evaluation | None:
    """The evaluation after the final step of a complete run."""
    return next((evaluation for evaluation in agent.evaluations if evaluation.step == agent.last), None)
