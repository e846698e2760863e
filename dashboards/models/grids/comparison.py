"""Comparison of a grid's methods on one pair: accuracy over seeds, cost, and the paper's values.

All data come from the grid's record and the experiments' progress files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from dashboards.models.grids.cells import StatusOf
from dashboards.models.grids.evaluations import AgentEvaluations, CurvePoint, evaluations_of, last_of, path_of
from dashboards.report.cells import Variant
from dashboards.report.compared import TOGETHER
from dashboards.report.published import AVERAGE, BEFORE
from dashboards.report.statistics import Summary, summarize
from dashboards.report.tables import PaperValues, paper_values_in
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import Spent


@dataclass(frozen=True, slots=True)
class Figure:
    """A value over seeds, and the paper's value if there is one."""

    summary: Summary | None
    paper: float | None


@dataclass(frozen=True, slots=True)
class PairTableLine:
    """A row of the table: an agent (or all together) and a method. Costs are means over the seeds of complete runs."""

    agent: str
    variant: Variant
    figures: tuple[Figure, ...]
    num_seeds: int
    num_planned: int
    tokens: float | None
    gpu_hours: float | None
    hours: float | None


@dataclass(frozen=True, slots=True)
class PairTable:
    """Comparison of all methods on one pair of a grid."""

    grid: str
    pair: str
    agents: tuple[str, ...]
    variants: tuple[Variant, ...]
    benchmarks: tuple[str, ...]
    columns: tuple[str, ...]
    """benchmarks, and their average if there are several"""
    lines: tuple[PairTableLine, ...]
    is_alone: bool
    """whether some method trains each agent separately"""
    has_gpu: bool


class Comparer:
    """Compares the methods on one pair of a grid; reads the evaluations and compares them once.

    Attributes:
        evaluations: of every cell, by method, label, seed and agent.
        benchmarks: those of the grid that were evaluated; all that were, if it names none of them.
        others: evaluated benchmarks that the grid does not compare.
    """

    def __init__(self, record: GridRecord, pair: str, status_of: StatusOf) -> None:
        self._record, self._pair = record, pair
        self._cells = [cell for cell in record.cells if cell.pair == pair]
        self._agents = tuple(dict.fromkeys(cell.agent for cell in self._cells))
        seeds: dict[Variant, set[int]] = {}
        for cell in self._cells:
            seeds.setdefault(Variant(cell.method, cell.label), set()).add(cell.seed)
        self._variants = tuple(seeds)
        self._seeds = {variant: sorted(variant_seeds) for variant, variant_seeds in seeds.items()}
        self.evaluations = {self._key(cell): evaluations_of(cell, status_of) for cell in self._cells}
        self._finals, self._curve = cache(self._finals_of), cache(self._curve_of)
        evaluations = [evaluation for run in self.evaluations.values() for evaluation in run.evaluations]
        benchmarks = dict.fromkeys(evaluation.benchmark for evaluation in evaluations)
        self.benchmarks = tuple(name for name in record.benchmarks if name in benchmarks) or tuple(benchmarks)
        self.others = tuple(name for name in benchmarks if name not in self.benchmarks)
        self._has_gpu = any(evaluation.spent.gpu_s > 0 for evaluation in evaluations)

    @staticmethod
    def _key(cell: GridCell) -> tuple[str, str, int, str]:
        return cell.method, cell.label, cell.seed, cell.agent

    def _of(self, variant: Variant, seed: int, agents: Sequence[str]) -> list[AgentEvaluations] | None:
        """Evaluations of these agents; None if one is missing."""
        runs = [self.evaluations.get((variant.method, variant.label, seed, agent)) for agent in agents]
        return [run for run in runs if run is not None] if None not in runs else None

    @cached_property
    def comparison(self) -> PairTable:
        """The table: each agent before training and for every method, then all agents together."""
        paper_values = paper_values_in(self._record.table)
        has_several = len(self.benchmarks) > 1
        columns = (*self.benchmarks, *([AVERAGE] if has_several else []))
        groups: list[tuple[str, ...]] = [(agent,) for agent in self._agents]
        groups += [self._agents] if len(self._agents) > 1 else []
        lines: list[PairTableLine] = []
        for agents in groups:
            lines.append(self._line(Variant(BEFORE), agents, columns, paper_values))
            lines += [self._line(variant, agents, columns, paper_values) for variant in self._variants]
        experiments: dict[tuple[str, str, int], set[str]] = {}
        for cell in self._cells:
            experiments.setdefault((cell.method, cell.label, cell.seed), set()).add(cell.experiment)
        return PairTable(
            grid=self._record.name,
            pair=self._pair,
            agents=self._agents,
            variants=self._variants,
            benchmarks=self.benchmarks,
            columns=columns,
            lines=tuple(line for line in lines if line.num_planned),
            is_alone=any(len(ids) > 1 for ids in experiments.values()),
            has_gpu=self._has_gpu,
        )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Methods of the pair, in grid order."""
        return self._variants

    @property
    def agents(self) -> tuple[str, ...]:
        """Agents of the pair, in grid order."""
        return self._agents

    def finals(self, variant: Variant, agents: Sequence[str], benchmarks: Sequence[str] = ()) -> Mapping[int, float]:
        """Mean accuracy of these agents after training by seed; only seeds whose runs are complete.

        Args:
            variant: method.
            agents: to average.
            benchmarks: to average; default: those of the comparison.
        """
        return self._finals(variant, tuple(agents), tuple(benchmarks or self.benchmarks))

    def _finals_of(self, variant: Variant, agents: tuple[str, ...], benchmarks: tuple[str, ...]) -> Mapping[int, float]:
        values = {}
        for seed in self._seeds.get(variant, ()):
            team = self._of(variant, seed, agents)
            if team and all(agent.last is not None for agent in team):
                values[seed] = statistics.fmean(agent.value(agent.last, benchmarks) for agent in team)
        return {seed: value for seed, value in values.items() if not math.isnan(value)}

    def _of_column(self, column: str) -> tuple[str, ...]:
        return self.benchmarks if column == AVERAGE else (column,)

    def _line(
        self,
        variant: Variant,
        agents: tuple[str, ...],
        columns: Sequence[str],
        paper_values: PaperValues,
    ) -> PairTableLine:
        name = _name_of(agents)
        is_before = variant.method == BEFORE
        variants = self._variants if is_before else (variant,)
        runs = [(v, seed, self._of(v, seed, agents)) for v in variants for seed in self._seeds[v]]
        complete = [
            (seed, team) for _, seed, team in runs
            if team and (is_before or all(agent.last is not None for agent in team))
        ]  # fmt: skip
        seeds, complete_teams = {seed for seed, _ in complete}, [team for _, team in complete]
        figures = []
        for column in columns:
            benchmarks = self._of_column(column)
            values = [
                statistics.fmean(agent.value(0 if is_before else agent.last, benchmarks) for agent in team)
                for team in complete_teams
            ]
            finite_values = [value for value in values if not math.isnan(value)]
            if is_before and finite_values:  # the same initial model in all runs, so there is no variation over seeds
                finite_values = [statistics.fmean(finite_values)]
            paper = None if variant.label else paper_values.get((self._pair, name, variant.method, column))
            figures.append(Figure(summarize(finite_values) if finite_values else None, paper))
        ends = [[last_of(agent) for agent in team] for team in complete_teams] if not is_before else []
        costs = [Spent.sum(end.spent for end in team_ends if end) for team_ends in ends if None not in team_ends]
        return PairTableLine(
            agent=name,
            variant=variant,
            figures=tuple(figures),
            num_seeds=len(seeds),
            num_planned=len({seed for _, seed, _ in runs}),
            tokens=_mean([spent.tokens for spent in costs]),
            gpu_hours=_mean([spent.gpu_s / 3600 for spent in costs]),
            hours=_mean([spent.seconds / 3600 for spent in costs]),
        )

    def paths(self, variant: Variant, agents: Sequence[str], benchmarks: Sequence[str]) -> dict[int, list[CurvePoint]]:
        """Points of every seed, for those that `curve` averages."""
        runs = {seed: team for seed in self._seeds.get(variant, ()) if (team := self._of(variant, seed, agents))}
        complete_runs = {seed: team for seed, team in runs.items() if all(agent.last is not None for agent in team)}
        return {seed: list(path_of(team, benchmarks).values()) for seed, team in (complete_runs or runs).items()}

    @cached_property
    def default_benchmark(self) -> str:
        """The benchmark that was evaluated at the most steps, so that curves have points; the first of equals.

        A grid's own are often evaluated only before and after training.
        """
        steps = {
            name: {e.step for run in self.evaluations.values() for e in run.evaluations if e.benchmark == name}
            for name in (*self.benchmarks, *self.others)
        }
        return max(steps, key=lambda name: len(steps[name]), default="")

    def curve(self, variant: Variant, agents: Sequence[str], benchmarks: Sequence[str]) -> Sequence[CurvePoint]:
        """Training curve: mean accuracy over agents against their summed cost.

        Only complete seeds are used; if there are none, all that have started, at the steps that all have evaluated.
        Every point is thus a mean over the same seeds.
        """
        return self._curve(variant, tuple(agents), tuple(benchmarks))

    def _curve_of(self, variant: Variant, agents: tuple[str, ...], benchmarks: tuple[str, ...]) -> Sequence[CurvePoint]:
        runs = [team for seed in self._seeds.get(variant, ()) if (team := self._of(variant, seed, agents))]
        runs = [team for team in runs if all(agent.last is not None for agent in team)] or runs
        paths = [path for path in (path_of(team, benchmarks) for team in runs) if path]
        common_steps = set.intersection(*(set(path) for path in paths)) if paths else set()
        points = []
        for step in sorted(common_steps):
            step_points = [path[step] for path in paths]
            summary = summarize([point.value for point in step_points])
            points.append(
                CurvePoint(
                    step=step,
                    tokens=statistics.fmean(point.tokens for point in step_points),
                    gpu_hours=statistics.fmean(point.gpu_hours for point in step_points),
                    hours=statistics.fmean(point.hours for point in step_points),
                    value=summary.mean,
                    half_width=summary.half_width,
                )
            )
        return points


def _name_of(agents: Sequence[str]) -> str:
    return agents[0] if len(agents) == 1 else TOGETHER


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
