"""The methods on one pair of a grid: accuracy over seeds, tokens, and the paper's values."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dashboards.report.cells import AgentRun, GridRuns, Variant
from dashboards.report.compared import TOGETHER
from dashboards.report.published import AVERAGE, BEFORE, PaperValues, paper_values_in
from dashboards.report.statistics import Summary, summarize
from flows.records.progress import Spent


@dataclass(frozen=True, slots=True)
class Figure:
    """A value over seeds, and the paper's value if there is one."""

    summary: Summary | None
    paper: float | None


@dataclass(frozen=True, slots=True)
class TableLine:
    """A row of the table: an agent (or all together) and a method. Costs are means over the seeds of complete runs."""

    agent: str
    agents: tuple[str, ...]
    variant: Variant
    figures: tuple[Figure, ...]
    num_seeds: int
    num_planned: int
    tokens: float | None
    gpu_hours: float | None


class Comparer:
    """Compares the methods on one pair of a grid.

    Attributes:
        columns: of the table: the grid's benchmarks, and their average if there are several.
    """

    def __init__(self, runs: GridRuns, pair: str) -> None:
        self._table, self.pair = runs.record.table, pair
        self._cells = {
            (agent, variant): by_seed for (of, agent, variant), by_seed in runs.by_seed.items() if of == pair
        }
        self.agents = tuple(dict.fromkeys(agent for agent, _ in self._cells))
        self.variants = tuple(dict.fromkeys(variant for _, variant in self._cells))
        self._benchmarks = runs.record.benchmarks
        self.columns = (*self._benchmarks, *([AVERAGE] if len(self._benchmarks) > 1 else []))

    def _teams(self, variants: Sequence[Variant], agents: Sequence[str]) -> list[tuple[int, list[AgentRun]]]:
        """Seed and runs of these agents, of each variant and seed that has them all."""
        teams = []
        for variant in variants:
            cells = [self._cells.get((agent, variant), {}) for agent in agents]
            seeds = sorted(set.intersection(*map(set, cells)))
            teams += [(seed, [by_seed[seed] for by_seed in cells]) for seed in seeds]
        return teams

    @cached_property
    def lines(self) -> tuple[TableLine, ...]:
        """The table: each agent before training and for every method, then all agents together."""
        paper_values = paper_values_in(self._table)
        groups = [(agent,) for agent in self.agents] + ([self.agents] if len(self.agents) > 1 else [])
        variants = (Variant(BEFORE), *self.variants)
        lines = [self._line(variant, agents, paper_values) for agents in groups for variant in variants]
        return tuple(line for line in lines if line.num_planned)

    def _line(self, variant: Variant, agents: tuple[str, ...], paper_values: PaperValues) -> TableLine:
        name = agents[0] if len(agents) == 1 else TOGETHER
        is_before = variant.method == BEFORE
        planned = self._teams(self.variants if is_before else (variant,), agents)
        teams = [(seed, team) for seed, team in planned if is_before or all(run.last is not None for run in team)]
        figures = []
        for column in self.columns:
            benchmarks = self._benchmarks if column == AVERAGE else (column,)
            by_seed = {
                seed: statistics.fmean(run.value(0 if is_before else run.last, benchmarks) for run in team)
                for seed, team in teams
            }
            values = [value for value in by_seed.values() if not math.isnan(value)]
            if is_before and values:  # the same initial model in all runs, so there is no variation over seeds
                values = [statistics.fmean(values)]
            paper = None if variant.label else paper_values.get((self.pair, name, variant.method, column))
            figures.append(Figure(summarize(values) if values else None, paper))
        spent = [[run.spent(run.last) for run in team] for _, team in teams if not is_before]
        costs = [Spent.sum(part for part in parts if part) for parts in spent if None not in parts]
        return TableLine(
            agent=name,
            agents=agents,
            variant=variant,
            figures=tuple(figures),
            num_seeds=len(teams),
            num_planned=len(planned),
            tokens=statistics.fmean(cost.tokens for cost in costs) if costs else None,
            gpu_hours=statistics.fmean(cost.gpu_s / 3600 for cost in costs) if costs else None,
        )
