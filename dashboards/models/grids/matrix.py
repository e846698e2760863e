"""A grid as a matrix of cells, each with the state of its experiments, and its comparisons so far."""

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dashboards.models.scheduling import ScheduleView
from dashboards.report.cells import StatusOf, Variant, read_runs, variant_of
from dashboards.report.comparison import Comparer
from dashboards.report.differences import ComparisonSection, comparisons
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import Progress, Spent
from flows.records.states import ExperimentStatus
from flows.service.experiment_state import CANCELLING, STATES, state_of

_BY_URGENCY = ("failed", "running", "queued", "missing", "unavailable", "done")
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+(\.\d+)?")
_T = TypeVar("_T")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The experiments of one row and seed of a grid; `key` is its element id in the page.

    There are several in the row of a method that trains each agent alone; the state is then that of the one that most
    needs a look, and steps and costs are sums. `scores` are `scores_of` the agents, `findings` those about health that
    hold, in brief.
    """

    key: str
    experiments: tuple[str, ...]
    method: str
    seed: int
    state: str
    reason: str
    step: int
    num_steps: int
    scores: Mapping[str, float]
    seconds_left: float | None
    spent: Spent
    findings: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """Mean accuracy of its agents; None before the first evaluation."""
        return statistics.fmean(self.scores.values()) if self.scores else None

    @property
    def remark(self) -> str:
        """Reason of its state; "" for done and running cells, whose step is shown instead."""
        return self.reason if self.state not in ("done", "running") or self.reason == CANCELLING else ""

    @property
    def share(self) -> float:
        """Share of completed steps, in [0, 1]."""
        return self.step / self.num_steps if self.num_steps else 0.0


@dataclass(frozen=True, slots=True)
class MatrixSection:
    """The rows of a pair: a method's cells, one or None per seed."""

    pair: str
    seeds: tuple[int, ...]
    rows: Mapping[Variant, tuple[MatrixCell | None, ...]]

    @property
    def accuracies(self) -> tuple[float, float]:
        """The lowest and the highest accuracy of its complete cells."""
        cells = [cell for row in self.rows.values() for cell in row if cell is not None and cell.state == "done"]
        values = [cell.value for cell in cells if cell.value is not None]
        return min(values, default=0.0), max(values, default=0.0)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A grid with the state of every cell, and a cell for each of its experiments alone, which the totals count."""

    name: str
    title: str
    sections: tuple[MatrixSection, ...]
    experiments: tuple[MatrixCell, ...]
    num_slots: int

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of experiments in each state."""
        counts = Counter(cell.state for cell in self.experiments)
        return {state: counts[state] for state in STATES}

    @property
    def spent(self) -> Spent:
        """What all experiments have cost so far."""
        return Spent.sum(cell.spent for cell in self.experiments)

    @property
    def num_with_findings(self) -> int:
        """Number of experiments whose health is in question."""
        return sum(bool(cell.findings) for cell in self.experiments)

    @property
    def num_at_a_time(self) -> int:
        """Number of experiments that are trained at a time."""
        return max(self.num_slots, self.counts["running"], 1)

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the running, queued and missing experiments are done; None if unknown yet.

        A running experiment reports its own estimate. Others count as the median of the complete experiments of the
        same method, or of all methods if it has none.
        """
        done = [cell for cell in self.experiments if cell.state == "done" and cell.spent.seconds]
        by_method, left = _grouped(done, lambda cell: cell.method), []
        for cell in self.experiments:
            if cell.state in ("running", "queued", "missing"):
                comparable = [other.spent.seconds for other in by_method.get(cell.method, done)]
                if cell.seconds_left is None and not comparable:
                    return None
                estimate = cell.seconds_left
                left.append(statistics.median(comparable) * (1 - cell.share) if estimate is None else estimate)
        return max(sum(left) / self.num_at_a_time, max(left)) if left else 0.0

    @property
    def failures(self) -> Mapping[str, Sequence[str]]:
        """The failed experiments by cause, the most frequent first; reasons may differ in numbers and hashes."""
        by_cause = _grouped((c for c in self.experiments if c.state == "failed"), lambda c: _VARYING.sub("#", c.reason))
        groups = sorted(by_cause.values(), key=lambda cells: -len(cells))
        return {cells[0].reason: [cell.experiments[0] for cell in cells] for cells in groups}


def _grouped(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    groups: dict[_K, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def build_matrix(record: GridRecord, status_of: StatusOf, schedule: ScheduleView) -> Matrix:
    """Build a grid with the state of every cell.

    Args:
        record: the planned grid.
        status_of: returns the state of an experiment by id; called once each.
        schedule: last known state of the schedule.
    """
    experiments = _grouped(record.cells, lambda cell: cell.experiment)
    statuses = {name: status_of(name) for name in experiments}
    sections = []
    for pair, pair_cells in _grouped(record.cells, lambda cell: cell.pair).items():
        seeds = tuple(sorted({cell.seed for cell in pair_cells}))
        rows = {}
        for variant, cells in _grouped(pair_cells, variant_of).items():
            by_seed = _grouped(cells, lambda cell: cell.seed)
            row = (_cell(by_seed[s], record, statuses, schedule) if s in by_seed else None for s in seeds)
            rows[variant] = tuple(row)
        sections.append(MatrixSection(pair, seeds, rows))
    alone = tuple(_cell(cells, record, statuses, schedule) for cells in experiments.values())
    return Matrix(record.name, record.title, tuple(sections), alone, schedule.num_slots)


def _cell(
    cells: Sequence[GridCell], record: GridRecord, statuses: Mapping[str, ExperimentStatus], schedule: ScheduleView
) -> MatrixCell:
    first, unavailable = cells[0], {cell.experiment: cell.unavailable for cell in cells}
    states = {name: state_of(statuses[name], schedule.runs.get(name), why) for name, why in unavailable.items()}
    urgent = min(states.values(), key=lambda state: _BY_URGENCY.index(state.state))
    progress = {name: begun for name in states if (begun := statuses[name].progress) is not None}
    running = {name for name, state in states.items() if state.state == "running" and state.reason != CANCELLING}
    left = [p.seconds_left for name, p in progress.items() if name in running and p.seconds_left is not None]
    num_steps = [begun.num_steps for begun in progress.values()]
    scores: dict[str, float] = {}
    for begun in progress.values():
        scores |= scores_of(begun, [cell.agent for cell in cells], record.benchmarks)
    names = (first.pair, first.method, first.label, str(first.seed), *states)
    return MatrixCell(
        key="c" + hashlib.sha256("\n".join(names).encode()).hexdigest()[:12],  # the same at every request
        experiments=tuple(states),
        method=first.method,
        seed=first.seed,
        state=urgent.state,
        reason=urgent.reason,
        step=sum(begun.step for begun in progress.values()),
        num_steps=sum(num_steps) + (len(states) - len(num_steps)) * max(num_steps, default=0),
        scores=scores,
        seconds_left=max(left, default=None),
        spent=Spent.sum(begun.total for begun in progress.values()),
        findings=tuple(finding.brief for begun in progress.values() for finding in begun.open_findings),
    )


def scores_of(progress: Progress, agents: Iterable[str], benchmarks: Sequence[str]) -> dict[str, float]:
    """Each agent's mean over benchmarks at its last evaluated step; agents without evaluations are omitted.

    Some benchmarks are evaluated only before and after training: if none of `benchmarks` was evaluated at that step,
    all that were are averaged.
    """
    scores = {}
    for agent in agents:
        if latest := progress.latest(agent):
            chosen = [evaluation for evaluation in latest if evaluation.benchmark in benchmarks] or latest
            scores[agent] = statistics.fmean(evaluation.value for evaluation in chosen)
    return scores


@dataclass(frozen=True, slots=True)
class GridComparison:
    """A grid's comparers by pair, and its verdicts, without rows if it has fewer than two methods."""

    comparers: Mapping[str, Comparer]
    verdicts: ComparisonSection


class GridComparisons:
    """Comparisons of grids; a grid is compared again only after a new evaluation, not after every training step."""

    def __init__(self, root_of: Callable[[str], Path]) -> None:
        self._root_of = root_of
        self._comparisons: dict[str, tuple[object, GridComparison]] = {}

    def of(self, record: GridRecord, status_of: StatusOf) -> GridComparison:
        """The comparers and the verdicts of a grid."""
        runs = read_runs(record, status_of, self._root_of)
        earlier_runs, comparison = self._comparisons.get(record.name, (None, None))
        if comparison is None or earlier_runs != runs:
            (verdicts,) = comparisons(runs) or [ComparisonSection("", "", ())]
            comparison = GridComparison({pair: Comparer(runs, pair) for pair in runs.pairs}, verdicts)
            self._comparisons[record.name] = runs, comparison
        return comparison
