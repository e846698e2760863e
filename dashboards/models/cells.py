"""A grid as a matrix of cells: what each experiment's files and the schedule say, in one state."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dashboards.models.scheduling import ScheduleView
from flows.records.gridfile import GridRecord, Place
from flows.records.progress import Evaluated, Progress, Spent
from flows.records.states import Standing
from flows.service.schedule import ScheduledRun

_CELL_STATES = ("done", "running", "queued", "failed", "missing", "unavailable")
CANCELLING = "is being cancelled"
StandingOf = Callable[[str], Standing]


@dataclass(frozen=True, slots=True)
class Score:
    """An agent's accuracy where it was evaluated last: the mean over the benchmarks that count."""

    agent: str
    value: float


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One experiment in one row and seed of a grid. `key` names it in the page."""

    key: str
    experiment: str
    seed: int
    state: str
    reason: str
    step: int
    num_steps: int
    scores: tuple[Score, ...]
    seconds_left: float | None
    spent: Spent
    priority: str

    @property
    def remark(self) -> str:
        """Why it is in its state; how far a running one is, its step says."""
        return self.reason if self.state not in ("done", "running") or self.reason == CANCELLING else ""

    @property
    def share(self) -> float:
        """Of the steps, in [0, 1]."""
        return self.step / self.num_steps if self.num_steps else 0.0


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A method, or an agent that a method trains alone; one cell or none per seed."""

    method: str
    label: str
    agent: str
    cells: tuple[MatrixCell | None, ...]


@dataclass(frozen=True, slots=True)
class MatrixSection:
    """A pair's rows under its seeds."""

    pair: str
    seeds: tuple[int, ...]
    rows: tuple[MatrixRow, ...]


@dataclass(frozen=True, slots=True)
class MatrixTotals:
    """How far a grid is, every experiment counted once. `seconds_left` is None where nothing was measured yet."""

    counts: Mapping[str, int]
    spent: Spent
    seconds_left: float | None
    num_slots: int

    @property
    def num_all(self) -> int:
        """Experiments of the grid."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Matrix:
    """A grid, ready to be shown."""

    name: str
    title: str
    sections: tuple[MatrixSection, ...]
    totals: MatrixTotals

    def cells(self) -> Iterable[MatrixCell]:
        """All cells, in the order of the page."""
        return (cell for section in self.sections for row in section.rows for cell in row.cells if cell is not None)


def beginning(matrix: Matrix, most_cells: int) -> Matrix:
    """The first sections, rows and seeds, with no more cells than this; totals stay those of the whole."""
    sections: list[MatrixSection] = []
    left = most_cells
    for section in matrix.sections:
        seeds = section.seeds[:left]
        if not seeds:
            break
        rows = [replace(row, cells=row.cells[: len(seeds)]) for row in section.rows[: left // len(seeds)]]
        sections.append(replace(section, seeds=seeds, rows=tuple(rows)))
        left -= len(seeds) * len(rows)
    return replace(matrix, sections=tuple(sections))


@dataclass(frozen=True, slots=True)
class CellState:
    """A state of _CELL_STATES and why."""

    state: str
    reason: str


def judge(standing: Standing, run: ScheduledRun | None, unavailable: str) -> CellState:
    """One state from files and schedule: what a process holds or finished counts before what a server believes.

    Args:
        standing: from the folder.
        run: its newest flow run, if the schedule knows any.
        unavailable: why a planner could not plan it, "" if it could.
    """
    if standing.state in ("done", "running"):
        is_ending = standing.state == "running" and run is not None and run.state == "Cancelling"
        return CellState(standing.state, CANCELLING if is_ending else standing.reason)
    if run is not None:
        if run.state in ("Scheduled", "Pending", "Paused"):
            return CellState("queued", f"waits for a worker, priority {run.priority}")
        if run.state == "Cancelling":
            return CellState("running", CANCELLING)
        if run.state == "Running":
            return CellState("running", "starts, or its process just ended")
    if standing.state == "failed":
        return CellState("failed", standing.reason)
    if run is not None and run.state in ("Failed", "Crashed"):
        return CellState("failed", run.message or f"its flow run {run.state.lower()}")
    if unavailable and standing.progress is None:
        return CellState("unavailable", unavailable)
    if run is not None and run.state == "Cancelled":
        so_far = f", {standing.reason}" if standing.progress is not None else ""
        return CellState("missing", f"was cancelled{so_far}")
    return CellState("missing", standing.reason)


def build_matrix(record: GridRecord, standing_of: StandingOf, schedule: ScheduleView) -> Matrix:
    """A grid with the state of every cell.

    Args:
        record: what was asked for.
        standing_of: state of an experiment by id, asked once each.
        schedule: as it was heard of last.
    """
    standings = {name: standing_of(name) for name in dict.fromkeys(place.experiment for place in record.places)}
    pairs: dict[str, list[Place]] = {}
    for place in record.places:
        pairs.setdefault(place.pair, []).append(place)
    sections = tuple(_section(pair, places, record, standings, schedule) for pair, places in pairs.items())
    once = {cell.experiment: cell for section in sections for row in section.rows for cell in row.cells if cell}
    methods = {place.experiment: place.method for place in record.places}
    return Matrix(record.name, record.title, sections, _totals(list(once.values()), methods, schedule.num_slots))


def _section(
    pair: str,
    places: Sequence[Place],
    record: GridRecord,
    standings: Mapping[str, Standing],
    schedule: ScheduleView,
) -> MatrixSection:
    seeds = tuple(sorted({place.seed for place in places}))
    variants: dict[tuple[str, str], list[Place]] = {}
    for place in places:
        variants.setdefault((place.method, place.label), []).append(place)
    rows = []
    for (method, label), own in variants.items():
        of_seed = Counter(seed for seed, _ in {(place.seed, place.experiment) for place in own})
        alone = list(dict.fromkeys(place.agent for place in own)) if max(of_seed.values()) > 1 else [""]
        for agent in alone:
            cells = []
            for seed in seeds:
                here = [place for place in own if place.seed == seed and agent in ("", place.agent)]
                cells.append(_cell(here, record, standings, schedule) if here else None)
            rows.append(MatrixRow(method, label, agent, tuple(cells)))
    return MatrixSection(pair, seeds, tuple(rows))


def _cell(
    places: Sequence[Place], record: GridRecord, standings: Mapping[str, Standing], schedule: ScheduleView
) -> MatrixCell:
    first = places[0]
    standing, run = standings[first.experiment], schedule.runs.get(first.experiment)
    cell_state = judge(standing, run, first.unavailable)
    progress, goes_on = standing.progress, cell_state.state == "running" and cell_state.reason != CANCELLING
    agents = [place.agent for place in places]
    return MatrixCell(
        key=cell_key(first),
        experiment=first.experiment,
        seed=first.seed,
        state=cell_state.state,
        reason=cell_state.reason,
        step=progress.step if progress is not None else 0,
        num_steps=progress.num_steps if progress is not None else 0,
        scores=scores_of(progress.evaluations, agents, record.benchmarks) if progress is not None else (),
        seconds_left=progress.seconds_left if progress is not None and goes_on else None,
        spent=total_spent(progress),
        priority=run.priority if run is not None and cell_state.state == "queued" else "",
    )


def cell_key(place: Place) -> str:
    """Name of a cell in the page, the same however often the grid is read."""
    text = "\n".join((place.pair, place.method, place.label, place.agent, str(place.seed), place.experiment))
    return f"c{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def scores_of(evaluations: Sequence[Evaluated], agents: Sequence[str], benchmarks: Sequence[str]) -> tuple[Score, ...]:
    """Each agent's mean over benchmarks where it was evaluated last; agents without any evaluation are left out.

    Args:
        evaluations: in any order.
        agents: to show.
        benchmarks: that count, where any of them was evaluated then; empty: all.
    """
    found = []
    for agent in agents:
        own = [one for one in evaluations if one.agent == agent]
        last = max((one.step for one in own), default=0)
        newest = [one for one in own if one.step == last]
        # Those that count may be evaluated at the ends only.
        counting = [one for one in newest if one.benchmark in benchmarks] or newest
        if counting:
            found.append(Score(agent, statistics.fmean(one.value for one in counting)))
    return tuple(found)


def total_spent(progress: Progress | None) -> Spent:
    """Of all agents together."""
    return Spent.sum(progress.spent.values() if progress is not None else ())


def _totals(cells: Sequence[MatrixCell], methods: Mapping[str, str], num_slots: int) -> MatrixTotals:
    counts = Counter(cell.state for cell in cells)
    return MatrixTotals(
        counts={state: counts[state] for state in _CELL_STATES},
        spent=Spent.sum(cell.spent for cell in cells),
        seconds_left=_time_left(cells, methods, max(num_slots, counts["running"], 1)),
        num_slots=num_slots,
    )


def _time_left(cells: Sequence[MatrixCell], methods: Mapping[str, str], num_slots: int) -> float | None:
    """Seconds until the running, queued and missing experiments are done, so many at a time.

    A running one says itself how long it needs; the others take as long as the median of the complete ones of their
    method, or of all where none of it is complete.
    """
    open_cells = [cell for cell in cells if cell.state in ("running", "queued", "missing")]
    known: dict[str, list[float]] = {}
    for cell in cells:
        if cell.state == "done" and cell.spent.seconds:
            known.setdefault(methods[cell.experiment], []).append(cell.spent.seconds)
    everything = [value for values in known.values() for value in values]
    left = []
    for cell in open_cells:
        if cell.seconds_left is not None:
            left.append(cell.seconds_left)
            continue
        like = known.get(methods[cell.experiment], everything)
        if not like:
            return None
        left.append(statistics.median(like) * (1 - cell.share))
    return max(sum(left) / num_slots, max(left)) if left else 0.0
