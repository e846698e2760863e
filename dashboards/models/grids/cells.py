"""A grid as a matrix of cells, each with the state of its experiment."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from dashboards.models.grids.matrix import Matrix, MatrixCell, MatrixRow, MatrixSection, MatrixTotals, Score
from dashboards.models.scheduling import ScheduleView
from dashboards.report.cells import StatusOf, Variant
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import Evaluation, Progress, Spent
from flows.records.states import ExperimentStatus
from flows.service.experiment_state import CANCELLING, STATES, state_of

_BY_URGENCY = ("failed", "running", "queued", "missing", "unavailable", "done")


def build_matrix(record: GridRecord, status_of: StatusOf, schedule: ScheduleView) -> Matrix:
    """Build a grid with the state of every cell.

    Args:
        record: the planned grid.
        status_of: returns the state of an experiment by id; called once each.
        schedule: last known state of the schedule.
    """
    statuses = {name: status_of(name) for name in dict.fromkeys(cell.experiment for cell in record.cells)}
    pairs: dict[str, list[GridCell]] = {}
    for cell in record.cells:
        pairs.setdefault(cell.pair, []).append(cell)
    sections = tuple(_section(pair, cells, record, statuses, schedule) for pair, cells in pairs.items())
    members: dict[str, list[GridCell]] = {}
    for cell in record.cells:
        members.setdefault(cell.experiment, []).append(cell)
    experiments = tuple(_cell(cells, record, statuses, schedule) for cells in members.values())
    methods = {cell.experiment: cell.method for cell in record.cells}
    totals = _totals(experiments, methods, schedule.num_slots)
    return Matrix(record.name, record.title, sections, experiments, totals)


def _section(
    pair: str,
    grid_cells: Sequence[GridCell],
    record: GridRecord,
    statuses: Mapping[str, ExperimentStatus],
    schedule: ScheduleView,
) -> MatrixSection:
    seeds = tuple(sorted({cell.seed for cell in grid_cells}))
    variants: dict[Variant, list[GridCell]] = {}
    for cell in grid_cells:
        variants.setdefault(Variant(cell.method, cell.label), []).append(cell)
    rows = []
    for variant, variant_cells in variants.items():
        by_seed = [[cell for cell in variant_cells if cell.seed == seed] for seed in seeds]
        cells = tuple(_cell(members, record, statuses, schedule) if members else None for members in by_seed)
        rows.append(MatrixRow(_key("r", pair, variant.method, variant.label), variant, cells))
    return MatrixSection(pair, seeds, tuple(rows))


def _cell(
    grid_cells: Sequence[GridCell],
    record: GridRecord,
    statuses: Mapping[str, ExperimentStatus],
    schedule: ScheduleView,
) -> MatrixCell:
    first, names = grid_cells[0], tuple(dict.fromkeys(cell.experiment for cell in grid_cells))
    unavailable = {cell.experiment: cell.unavailable for cell in grid_cells}
    states = {name: state_of(statuses[name], schedule.runs.get(name), unavailable[name]) for name in names}
    urgent_experiment = min(names, key=lambda name: _BY_URGENCY.index(states[name].state))
    progress = [run_progress for name in names if (run_progress := statuses[name].progress) is not None]
    seconds_left = [
        run_progress.seconds_left
        for name in names
        if (run_progress := statuses[name].progress) is not None
        and run_progress.seconds_left is not None
        and states[name].state == "running"
        and states[name].reason != CANCELLING
    ]
    num_steps = [run_progress.num_steps for run_progress in progress]
    return MatrixCell(
        key=_key("c", first.pair, first.method, first.label, str(first.seed), *names),
        experiments=names,
        seed=first.seed,
        state=states[urgent_experiment].state,
        reason=states[urgent_experiment].reason,
        step=sum(run_progress.step for run_progress in progress),
        num_steps=sum(num_steps) + (len(names) - len(num_steps)) * max(num_steps, default=0),
        scores=tuple(
            score
            for run_progress in progress
            for score in scores_of(run_progress.evaluations, [cell.agent for cell in grid_cells], record.benchmarks)
        ),
        seconds_left=max(seconds_left, default=None),
        spent=Spent.sum(total_spent(run_progress) for run_progress in progress),
        findings=tuple(finding.brief for run_progress in progress for finding in run_progress.open_findings),
    )


def _key(kind: str, *names: str) -> str:
    """Element id in the page, the same at every request."""
    return kind + hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def scores_of(evaluations: Sequence[Evaluation], agents: Sequence[str], benchmarks: Sequence[str]) -> tuple[Score, ...]:
    """Each agent's mean over benchmarks at its last evaluated step; agents without evaluations are omitted.

    Args:
        evaluations: in any order.
        agents: to show.
        benchmarks: to average; if none of them was evaluated at that step, all that were.
    """
    scores = []
    for agent in agents:
        agent_evaluations = [evaluation for evaluation in evaluations if evaluation.agent == agent]
        last = max((evaluation.step for evaluation in agent_evaluations), default=0)
        newest = [evaluation for evaluation in agent_evaluations if evaluation.step == last]
        # Some benchmarks are evaluated only before and after training.
        chosen_evaluations = [evaluation for evaluation in newest if evaluation.benchmark in benchmarks] or newest
        if chosen_evaluations:
            scores.append(
                Score(agent, sum(evaluation.value for evaluation in chosen_evaluations) / len(chosen_evaluations))
            )
    return tuple(scores)


def total_spent(progress: Progress | None) -> Spent:
    """Total cost of all agents."""
    return Spent.sum(progress.spent.values() if progress is not None else ())


def _totals(cells: Sequence[MatrixCell], methods: Mapping[str, str], num_slots: int) -> MatrixTotals:
    counts = Counter(cell.state for cell in cells)
    return MatrixTotals(
        counts={state: counts[state] for state in STATES},
        spent=Spent.sum(cell.spent for cell in cells),
        seconds_left=_time_left(cells, methods, max(num_slots, counts["running"], 1)),
        num_slots=num_slots,
        num_with_findings=sum(bool(cell.findings) for cell in cells),
    )


def _time_left(cells: Sequence[MatrixCell], methods: Mapping[str, str], num_slots: int) -> float | None:
    """Estimated seconds until the running, queued and missing experiments are done, `num_slots` at a time.

    A running experiment reports its own estimate. Others count as the median of the complete experiments of the same
    method, or of all methods if it has none.
    """
    open_cells = [cell for cell in cells if cell.state in ("running", "queued", "missing")]
    seconds_by_method: dict[str, list[float]] = {}
    for cell in cells:
        if cell.state == "done" and cell.spent.seconds:
            seconds_by_method.setdefault(methods[cell.experiment], []).append(cell.spent.seconds)
    all_seconds = [value for values in seconds_by_method.values() for value in values]
    cell_seconds = []
    for cell in open_cells:
        if cell.seconds_left is not None:
            cell_seconds.append(cell.seconds_left)
            continue
        comparable = seconds_by_method.get(methods[cell.experiment], all_seconds)
        if not comparable:
            return None
        cell_seconds.append(statistics.median(comparable) * (1 - cell.share))
    return max(sum(cell_seconds) / num_slots, max(cell_seconds)) if cell_seconds else 0.0
