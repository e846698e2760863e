"""The table of runs: chosen by pair, method, state and grid, in the order of a column."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from dashboards.models.grids.matrix import scores_of
from dashboards.models.listing import Runs
from dashboards.models.scheduling import ScheduleView
from flows.records.states import differing_fields
from flows.service.experiment_state import state_of

COLUMNS = ("run", "pair", "method", "seed", "state", "health", "step", "reward", "accuracy", "tokens", "updated")


@dataclass(frozen=True, slots=True)
class RunChoice:
    """What the table shows, as its address says it: "" is any; a leading "-" of the order is descending."""

    pair: str = ""
    method: str = ""
    state: str = ""
    grid: str = ""
    order: str = ""


def run_rows(runs: Runs, schedule: ScheduleView) -> list[dict[str, Any]]:
    """All runs of the folder, by id: COLUMNS, unknown ones None, and `differs`.

    The pair is that of the grid that asked for it; health names the rules whose findings hold; the reward of the last
    step and the accuracy at the last evaluation are means over agents; `differs` is what tells the run from others of
    its pair, method and seed.
    """
    rows, differs = [], differing_fields(map(runs.root_of, runs.names()))
    for name in runs.names():
        status, cell = runs.status(name), runs.cells(name)[0]
        state = status.shown(state_of(status, schedule.runs.get(name), runs.unavailable(name)).state)
        row: dict[str, Any] = {**dict.fromkeys(COLUMNS), "run": name, "pair": cell.pair, "method": cell.method}
        row |= {"seed": cell.seed, "state": state, "health": (), "differs": differs.get(name, "")}
        if (progress := status.progress) is not None:
            own_benchmarks = [e.benchmark for e in progress.evaluations if e.step == 0]  # `hacpo evaluate` adds others
            row |= {
                "health": tuple(dict.fromkeys(finding.rule for finding in progress.open_findings)),
                "step": progress.step,
                "reward": _mean(progress.rewards.values()),
                "accuracy": _mean(scores_of(progress, progress.spent, own_benchmarks).values()),
                "tokens": progress.total.tokens,
                "updated": progress.updated_at,
            }
        rows.append(row)
    return rows


def _mean(values: Collection[float]) -> float | None:
    mean = statistics.fmean(values) if values else math.nan
    return None if math.isnan(mean) else mean


def choose(
    rows: Sequence[Mapping[str, Any]], choice: RunChoice, members: Collection[str] | None
) -> list[Mapping[str, Any]]:
    """The chosen rows in the order of a column, those without a value last.

    Args:
        rows: all runs.
        choice: its order is "" or one of COLUMNS, with or without "-".
        members: ids of the grid's runs; None: of any grid or none.
    """
    wanted = {"pair": choice.pair, "method": choice.method, "state": choice.state}
    chosen = [
        row
        for row in rows
        if all(value in ("", row[name]) for name, value in wanted.items())
        and (members is None or row["run"] in members)
    ]
    if not choice.order:
        return chosen
    column = choice.order.removeprefix("-")
    known = [row for row in chosen if row[column] not in (None, ())]
    unknown = [row for row in chosen if row[column] in (None, ())]
    return [*sorted(known, key=itemgetter(column), reverse=choice.order.startswith("-")), *unknown]
