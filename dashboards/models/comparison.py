"""HACPO against the other methods of a grid on one pair: values over seeds, what they cost, and the paper's.

Everything comes from the grid's record and the experiments' progress files.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboards.models.cells import StandingOf
from experiments.published.tables import AVERAGE, BEFORE
from experiments.report.cells import Variant
from experiments.report.statistics import Summary, summarize
from experiments.report.tables import Printed, printed_in
from flows.records.gridfile import GridRecord, Place
from flows.records.progress import Evaluated, Spent

TOGETHER = "all agents"
"""the mean over a pair's agents"""
_COLUMNS = [
    *("grid", "pair", "agent", "method", "label", "benchmark", "mean", "half_width_95", "seeds", "seeds_planned"),
    *("paper", "tokens_sampled", "gpu_hours", "phase_hours"),
]


@dataclass(frozen=True, slots=True)
class Figure:
    """A value over seeds, beside the printed one where the paper has it."""

    summary: Summary | None
    printed: float | None


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """A row of the table: an agent (or all together) under a method. Costs are means over seeds of complete runs."""

    agent: str
    variant: Variant
    figures: tuple[Figure, ...]
    num_seeds: int
    num_planned: int
    tokens: float | None
    gpu_hours: float | None
    hours: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation on the way, mean over seeds; `half_width` of the 95 % interval, nan with one seed."""

    step: int
    tokens: float
    gpu_hours: float
    hours: float
    value: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pair of a grid."""

    grid: str
    pair: str
    agents: tuple[str, ...]
    variants: tuple[Variant, ...]
    benchmarks: tuple[str, ...]
    columns: tuple[str, ...]
    """benchmarks, and their average where there are several"""
    lines: tuple[ComparisonLine, ...]
    is_alone: bool
    """some method trains the agents each alone"""
    has_gpu: bool


@dataclass(frozen=True, slots=True)
class _Trained:
    """An agent's evaluations under one method and seed; `last` is the step of a finished training, else None."""

    evaluations: tuple[Evaluated, ...]
    last: int | None

    def value(self, step: int | None, benchmarks: Iterable[str]) -> float:
        """Mean over benchmarks after a step; nan where one is missing."""
        found = {one.benchmark: one.value for one in self.evaluations if one.step == step}
        return statistics.fmean(found.get(name, math.nan) for name in benchmarks)


class Comparer:
    """A grid's pair, with its experiments' evaluations read once."""

    def __init__(self, record: GridRecord, pair: str, standing_of: StandingOf) -> None:
        self._record, self._pair = record, pair
        self._places = [place for place in record.places if place.pair == pair]
        self._agents = tuple(dict.fromkeys(place.agent for place in self._places))
        self._variants = tuple(dict.fromkeys(Variant(place.method, place.label) for place in self._places))
        self._trained = {self._key(place): _trained(place, standing_of) for place in self._places}
        everything = [one for trained in self._trained.values() for one in trained.evaluations]
        found = dict.fromkeys(one.benchmark for one in everything)
        self.benchmarks = tuple(name for name in record.benchmarks if name in found) or tuple(found)
        self._has_gpu = any(one.spent.gpu_s > 0 for one in everything)

    def extent(self) -> list[tuple[int, tuple[Evaluated, ...], int | None]]:
        """How many evaluations each training has, and its newest: others mean other curves."""
        return [(len(one.evaluations), one.evaluations[-1:], one.last) for one in self._trained.values()]

    @staticmethod
    def _key(place: Place) -> tuple[str, str, int, str]:
        return place.method, place.label, place.seed, place.agent

    def _seeds(self, variant: Variant) -> list[int]:
        return sorted({p.seed for p in self._places if (p.method, p.label) == (variant.method, variant.label)})

    def _of(self, variant: Variant, seed: int, agents: Sequence[str]) -> list[_Trained] | None:
        """Trainings of these agents; None where one is missing."""
        found = [self._trained.get((variant.method, variant.label, seed, agent)) for agent in agents]
        return [one for one in found if one is not None] if None not in found else None

    def comparison(self) -> Comparison:
        """The table: each agent before training and under every method, then all agents together."""
        printed = printed_in(self._record.table)
        several = len(self.benchmarks) > 1
        columns = (*self.benchmarks, *([AVERAGE] if several else []))
        groups: list[tuple[str, ...]] = [(agent,) for agent in self._agents]
        groups += [self._agents] if len(self._agents) > 1 else []
        lines: list[ComparisonLine] = []
        for agents in groups:
            lines.append(self._line(Variant(BEFORE), agents, columns, printed))
            lines += [self._line(variant, agents, columns, printed) for variant in self._variants]
        by_training: dict[tuple[str, str, int], set[str]] = {}
        for place in self._places:
            by_training.setdefault((place.method, place.label, place.seed), set()).add(place.experiment)
        return Comparison(
            grid=self._record.name,
            pair=self._pair,
            agents=self._agents,
            variants=self._variants,
            benchmarks=self.benchmarks,
            columns=columns,
            lines=tuple(line for line in lines if line.num_planned),
            is_alone=any(len(found) > 1 for found in by_training.values()),
            has_gpu=self._has_gpu,
        )

    def _line(
        self,
        variant: Variant,
        agents: tuple[str, ...],
        columns: Sequence[str],
        printed: Printed,
    ) -> ComparisonLine:
        name = agents[0] if len(agents) == 1 else TOGETHER
        is_before = variant.method == BEFORE
        variants = self._variants if is_before else (variant,)
        runs = [(v, seed, self._of(v, seed, agents)) for v in variants for seed in self._seeds(v)]
        ended = [
            (seed, found) for _, seed, found in runs
            if found and (is_before or all(one.last is not None for one in found))
        ]  # fmt: skip
        seeds, done = {seed for seed, _ in ended}, [found for _, found in ended]
        figures = []
        for column in columns:
            benchmarks = self.benchmarks if column == AVERAGE else (column,)
            values = [
                statistics.fmean(one.value(0 if is_before else one.last, benchmarks) for one in found) for found in done
            ]
            known = [value for value in values if not math.isnan(value)]
            if is_before and known:  # one model, read in several runs: no seeds that could vary
                known = [statistics.fmean(known)]
            paper = None if variant.label else printed.get((self._pair, name, variant.method, column))
            figures.append(Figure(summarize(known) if known else None, paper))
        ends = [[_last(one) for one in found] for found in done] if not is_before else []
        costs = [Spent.sum(end.spent for end in of_seed if end) for of_seed in ends if None not in of_seed]
        return ComparisonLine(
            agent=name,
            variant=variant,
            figures=tuple(figures),
            num_seeds=len(seeds),
            num_planned=len({seed for _, seed, _ in runs}),
            tokens=_mean([spent.tokens for spent in costs]),
            gpu_hours=_mean([spent.gpu_s / 3600 for spent in costs]),
            hours=_mean([spent.seconds / 3600 for spent in costs]),
        )

    def curve(self, variant: Variant, agents: Sequence[str], benchmarks: Sequence[str]) -> list[Point]:
        """Accuracy against cost on the way: accuracy is the mean over agents, costs are their sum.

        Seeds count that are complete; where none is, all that have begun, up to the last step that all were evaluated
        after: every point is a mean over the same seeds.
        """
        runs = [found for seed in self._seeds(variant) if (found := self._of(variant, seed, agents))]
        runs = [found for found in runs if all(one.last is not None for one in found)] or runs
        paths = [path for path in (_path(found, benchmarks) for found in runs) if path]
        shared = set.intersection(*(set(path) for path in paths)) if paths else set()
        points = []
        for step in sorted(shared):
            here = [path[step] for path in paths]
            summary = summarize([one.value for one in here])
            points.append(
                Point(
                    step=step,
                    tokens=statistics.fmean(one.tokens for one in here),
                    gpu_hours=statistics.fmean(one.gpu_hours for one in here),
                    hours=statistics.fmean(one.hours for one in here),
                    value=summary.mean,
                    half_width=summary.half_width,
                )
            )
        return points


def _trained(place: Place, standing_of: StandingOf) -> _Trained:
    standing = standing_of(place.experiment)
    if standing.progress is None:
        return _Trained((), None)
    own = tuple(one for one in standing.progress.evaluations if one.agent == place.agent)
    return _Trained(own, standing.progress.num_steps if standing.state == "done" else None)


def _path(trained: Sequence[_Trained], benchmarks: Sequence[str]) -> dict[int, Point]:
    """One seed's points by step, where every agent was evaluated on every benchmark."""
    found = {}
    for step in sorted({one.step for one in trained[0].evaluations}):
        value = statistics.fmean(one.value(step, benchmarks) for one in trained)
        if math.isnan(value):
            continue
        spent = Spent.sum(next(e.spent for e in one.evaluations if e.step == step) for one in trained)
        found[step] = Point(step, spent.tokens, spent.gpu_s / 3600, spent.seconds / 3600, value, math.nan)
    return found


def _last(trained: _Trained) -> Evaluated | None:
    return next((one for one in trained.evaluations if one.step == trained.last), None)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def as_csv(found: Comparison) -> str:
    """The table as comma-separated values, one line per agent, method and benchmark."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in found.lines:
        for name, figure in zip(found.columns, line.figures, strict=True):
            summary = figure.summary
            numbers = (
                summary.mean if summary else None,
                summary.half_width if summary and not math.isnan(summary.half_width) else None,
                line.num_seeds,
                line.num_planned,
                figure.printed,
                *(line.tokens, line.gpu_hours, line.hours),
            )
            names = (found.grid, found.pair, line.agent, line.variant.method, line.variant.label, name)
            writer.writerow([_harmless(name) for name in names] + ["" if n is None else f"{n:.6g}" for n in numbers])
    return out.getvalue()


def _harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in "=+-@\t" and name else name
