"""The table of runs: chosen by pair, method, state and grid, in the order of a column."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dashboards.models.grids.matrix import scores_of
from dashboards.models.listing import Runs
from dashboards.models.scheduling import ScheduleView
from flows.records.states import differing_fields
from flows.service.experiment_state import state_of


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run; its reward of the last step and its accuracy at the last evaluation are means over agents.

    Unknown numbers are None. `pair` is that of the grid that asked for it, `health` names the rules whose findings
    hold, and `differs` is what tells it from other runs of its pair, method and seed.
    """

    run: str
    pair: str
    method: str
    seed: int
    state: str
    health: tuple[str, ...] = ()
    step: int | None = None
    reward: float | None = None
    accuracy: float | None = None
    tokens: int | None = None
    updated: float | None = None
    differs: str = ""


COLUMNS = tuple(field.name for field in fields(RunRow) if field.name != "differs")


@dataclass(frozen=True, slots=True)
class RunChoice:
    """What the table shows, as its address says it: "" is any; a leading "-" of the order is descending."""

    pair: str = ""
    method: str = ""
    state: str = ""
    grid: str = ""
    order: str = ""


def run_rows(runs: Runs, schedule: ScheduleView) -> list[RunRow]:
    """All runs of the folder, by id."""
    rows = [_row(runs, name, schedule) for name in runs.names()]
    differs = differing_fields(map(runs.root_of, runs.names()))
    return [replace(row, differs=differs.get(row.run, "")) for row in rows]


def _row(runs: Runs, name: str, schedule: ScheduleView) -> RunRow:
    status, cell = runs.status(name), runs.cells(name)[0]
    state = status.shown(state_of(status, schedule.runs.get(name), runs.unavailable(name)).state)
    progress = status.progress
    if progress is None:
        return RunRow(name, cell.pair, cell.method, cell.seed, state)
    return RunRow(
        name,
        cell.pair,
        cell.method,
        cell.seed,
        state,
        tuple(dict.fromkeys(finding.rule for finding in progress.open_findings)),
        progress.step,
        _mean(list(progress.rewards.values())),
        _mean(list(scores_of(progress, progress.spent, ()).values())),
        progress.total.tokens,
        progress.updated_at,
    )


def _mean(values: Sequence[float]) -> float | None:
    mean = statistics.fmean(values) if values else math.nan
    return None if math.isnan(mean) else mean


def choose(rows: Sequence[RunRow], choice: RunChoice, members: frozenset[str] | None) -> list[RunRow]:
    """The chosen rows in the order of a column, those without a value last.

    Args:
        rows: all runs.
        choice: its order is "" or one of COLUMNS, with or without "-".
        members: ids of the grid's runs; None: of any grid or none.
    """
    chosen = [
        row
        for row in rows
        if all(getattr(row, name) == value for name in ("pair", "method", "state") if (value := getattr(choice, name)))
        and (members is None or row.run in members)
    ]
    if not choice.order:
        return chosen

    def value_of(row: RunRow) -> Any:
        return getattr(row, choice.order.removeprefix("-"))

    known = [row for row in chosen if value_of(row) not in (None, ())]
    unknown = [row for row in chosen if value_of(row) in (None, ())]
    return [*sorted(known, key=value_of, reverse=choice.order.startswith("-")), *unknown]
