"""All runs as a table: columns of one's choice, conditions, order, and groups with mean and interval."""

from __future__ import annotations

import difflib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboards.models.conditions import exact_text, read_conditions
from dashboards.models.grids.cells import total_spent
from dashboards.models.listing import Runs
from dashboards.models.runs.settings import read_field_values
from dashboards.models.runs_query import Query, Row, Table, cell_text
from dashboards.models.scheduling import ScheduleView
from dashboards.report.statistics import Summary, summarize
from flows.records.gridfile import GridCell
from flows.records.notes import NOTES_FILE, Notes, read_notes
from flows.records.progress import Progress
from flows.records.states import CONFIG_FILE
from flows.service.experiment_state import state_of
from hacpo_core.errors import ConfigError, StoreError
from hacpo_core.evaluation.metrics import BITS_PER_BYTE
from hacpo_core.store.steps import StepStore

COLUMNS: Mapping[str, str] = {
    "run": "id of the experiment",
    "pair": "name of the team of agents; for a training of one agent, the pair of its grid",
    "method": "name of the method",
    "seed": "seed",
    "state": "done, running, queued, failed, missing or unavailable",
    "health": "findings that hold, by name of their rule (`hacpo health`)",
    "step": "steps that are complete",
    "reward": "mean reward of the last step, mean over agents; reward.AGENT for one",
    "accuracy": "at the last evaluation, mean over agents and benchmarks; accuracy.BENCHMARK(.AGENT) for one",
    "bits_per_byte": "of reference solutions, where they are measured; otherwise as accuracy",
    "tokens": "tokens sampled, all agents",
    "time_s": "seconds of the phases, all agents, without evaluations",
    "gpu_s": "GPU-seconds, all agents, without evaluations",
    "updated": "time of the last change, seconds since 1970",
    "tags": "tags of this run; also tag, for conditions",
    "note": "note on this run",
}
"""columns that every run has, with their meaning; fields of the configuration and metrics are columns too

COLUMN@STEP is a reward, an accuracy or a metric at a step, COLUMN@best its highest value; of bits per byte, the lowest.
"""
BEST = "best"
_EVALUATION_COLUMNS = ("accuracy", BITS_PER_BYTE)


class RunTables:
    """Reads tables of a folder's runs; a run's files are read again only if they have changed."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._entries: dict[tuple[str, Path], tuple[Any, Any]] = {}

    def table(self, query: Query, schedule: ScheduleView) -> Table:
        """The rows of a query. A wrong query gives an empty table with its problem."""
        runs = {name: _Run(self, name, schedule) for name in self._runs.names()}
        try:
            conditions = read_conditions(query.conditions)
            columns_to_check = [
                *(c.column for c in conditions),
                *query.columns,
                *query.group,
                query.order.removeprefix("-"),
            ]
            self._check(filter(None, columns_to_check), list(runs.values()))
        except ConfigError as error:
            return Table(query.columns, (), len(runs), str(error))
        matching_runs = [
            run
            for run in runs.values()
            if (query.has_archived or not run.notes.is_archived) and all(c.holds(run.value) for c in conditions)
        ]
        columns = query.columns
        if query.group:
            columns = (*query.group, "runs", *(c for c in query.columns if c not in (*query.group, "run", "seed")))
            rows = _groups(matching_runs, query.group, columns)
        else:
            rows = [
                Row(run.name, tuple(map(run.value, columns)), is_archived=run.notes.is_archived)
                for run in matching_runs
            ]
        order = query.order.removeprefix("-")
        if order in columns:
            place = columns.index(order)
            rows = _sorted(rows, lambda row: row.values[place], descending=query.order.startswith("-"))
        elif order and not query.group:
            by_name = {run.name: run for run in matching_runs}
            rows = _sorted(rows, lambda row: by_name[row.key].value(order), descending=query.order.startswith("-"))
        return Table(columns, tuple(rows), len(runs))

    def column_names(self) -> list[str]:
        """Columns to offer: the general ones, evaluated benchmarks, and fields and metrics of the newest run."""
        names = self._runs.names()
        progress = [run_progress for name in names if (run_progress := self._runs.status(name).progress) is not None]
        benchmarks = dict.fromkeys(
            evaluation.benchmark for run_progress in progress for evaluation in run_progress.evaluations
        )
        newest = max(names, key=lambda name: self._updated_at(name), default=None)
        of_newest = [*self.fields(newest), *self.metrics(newest)] if newest is not None else []
        return [*COLUMNS, *(f"accuracy.{name}" for name in benchmarks), *of_newest]

    def _updated_at(self, name: str) -> float:
        progress = self._runs.status(name).progress
        return progress.updated_at if progress is not None else 0.0

    def _check(self, columns: Iterable[str], runs: Sequence[_Run]) -> None:
        for column in dict.fromkeys(columns):
            if column in COLUMNS or column in ("tag", "runs") or not runs:
                continue
            if all(run.value(column) is None for run in runs):
                close = difflib.get_close_matches(column, self.column_names(), n=2)
                hint = f"did you mean {' or '.join(close)}?" if close else "the list of columns has all names"
                raise ConfigError(f"no run has the column {column!r}; {hint}")

    def fields(self, name: str) -> Mapping[str, str]:
        """Configuration of a run by dotted name."""
        root = self._runs.root_of(name)
        fields: Mapping[str, str] = self._keep("fields", root, root / CONFIG_FILE, lambda: read_field_values(root))
        return fields

    def notes(self, name: str) -> Notes:
        """Notes on a run."""
        root = self._runs.root_of(name)
        notes: Notes = self._keep("notes", root, root / NOTES_FILE, lambda: read_notes(root))
        return notes

    def metrics(self, name: str) -> Mapping[str, float]:
        """Metrics of a run's last step, mean over agents."""
        root, progress = self._runs.root_of(name), self._runs.status(name).progress
        if progress is None or not progress.step:
            return {}
        store = StepStore(root)
        path = store.folder(progress.step) / "metrics.json"
        metrics: Mapping[str, float] = self._keep("metrics", root, path, lambda: _step_metrics(store, progress.step))
        return metrics

    def metric_at(self, name: str, metric: str, at: str, agent: str = "") -> float | None:
        """A metric of a run after a step or the highest of all steps; None if it is not known.

        It is an agent's, or with "" the mean over all agents.
        """
        root, progress = self._runs.root_of(name), self._runs.status(name).progress
        if progress is None or not progress.step:
            return None
        store, last = StepStore(root), progress.step
        steps = range(1, last + 1) if at == BEST else range(int(at), int(at) + 1)
        path = store.folder(steps[-1]) / "metrics.json"

        def read() -> float | None:
            values = (_step_metrics(store, step, agent).get(metric) for step in steps)
            return _highest(value for value in values if value is not None)

        value: float | None = self._keep(f"{metric} {agent}@{at}", root, path, read)
        return value

    def status(self, name: str) -> Any:
        """State of a run."""
        return self._runs.status(name)

    def cells(self, name: str) -> list[GridCell]:
        """Pairs, method and seed of a run."""
        return self._runs.cells(name)

    def unavailable(self, name: str) -> str:
        """Why a run is not possible on this machine."""
        return self._runs.unavailable(name)

    def _keep(self, kind: str, root: Path, file: Path, read: Callable[[], Any]) -> Any:
        try:
            status = file.stat()
            stamp: Any = (str(file), status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = None
        entry = self._entries.get((kind, root))
        if entry is None or entry[0] != stamp:
            entry = self._entries[kind, root] = (stamp, read())
        return entry[1]


class _Run:
    """A run's values by column; files are read when a column asks for them."""

    def __init__(self, tables: RunTables, name: str, schedule: ScheduleView) -> None:
        self._tables, self.name, self._schedule = tables, name, schedule
        self._status = tables.status(name)

    @property
    def notes(self) -> Notes:
        return self._tables.notes(self.name)

    def value(self, column: str) -> Any:
        progress: Progress | None = self._status.progress
        if column == "run":
            return self.name
        if column in ("pair", "method", "seed"):
            values = list(dict.fromkeys(getattr(cell, column) for cell in self._tables.cells(self.name)))
            return values if len(values) > 1 else values[0]
        if column == "state":
            return state_of(self._status, self._schedule.runs.get(self.name), self._tables.unavailable(self.name)).state
        if column == "health":
            return list(dict.fromkeys(finding.rule for finding in progress.open_findings)) if progress else None
        if column in ("tag", "tags"):
            return list(self.notes.tags)
        if column == "note":
            return self.notes.note
        name, _, at = column.partition("@")
        if progress is not None and (at == BEST or at.isdecimal()):
            if name.partition(".")[0] in _EVALUATION_COLUMNS:
                return _evaluation_mean(name, progress, at)
            kind, _, agent = name.partition(".") if name.startswith("reward") and "/" not in name else (name, "", "")
            return self._tables.metric_at(self.name, "reward/mean" if kind == "reward" else name, at, agent)
        if "/" in column:
            return self._tables.metrics(self.name).get(column)
        number = _number_of(column, progress) if progress is not None else None
        if number is not None or column in COLUMNS:
            return number
        text = self._tables.fields(self.name).get(column)
        return _plain(text) if text is not None else None


def _number_of(column: str, progress: Progress) -> float | None:
    name, _, rest = column.partition(".")
    if name == "reward":
        if rest:
            return progress.rewards.get(rest)
        return statistics.fmean(progress.rewards.values()) if progress.rewards else None
    if name in _EVALUATION_COLUMNS:
        return _evaluation_mean(column, progress, "last")
    spent = total_spent(progress)
    return {
        "step": progress.step,
        "tokens": spent.tokens,
        "time_s": spent.seconds,
        "gpu_s": spent.gpu_s,
        "updated": progress.updated_at,
    }.get(column)


def _evaluation_mean(column: str, progress: Progress, at: str) -> float | None:
    """Mean over agents and benchmarks at a step, at the last one, or at the best of those that have as many values."""
    kind, benchmark, agent = (*column.split(".", 2), "", "")[:3]
    by_step: dict[int, list[float]] = {}
    for evaluation in progress.evaluations:
        value = evaluation.value if kind == "accuracy" else evaluation.bits_per_byte
        if value is not None and benchmark in ("", evaluation.benchmark) and agent in ("", evaluation.agent):
            by_step.setdefault(evaluation.step, []).append(value)
    if at.isdecimal():
        values = by_step.get(int(at))
        return statistics.fmean(values) if values else None
    if not by_step:
        return None
    if at == "last":
        return statistics.fmean(by_step[max(by_step)])
    max_count = max(map(len, by_step.values()))
    means = [statistics.fmean(values) for values in by_step.values() if len(values) == max_count]
    return _highest(means) if kind == "accuracy" else min(means)


def _highest(values: Iterable[float]) -> float | None:
    """The highest value, nan only if nothing else is known."""
    return max(values, default=None, key=lambda value: -math.inf if math.isnan(value) else value)


def _step_metrics(store: StepStore, step: int, agent: str = "") -> Mapping[str, float]:
    """Metrics of an agent, or with "" means over all agents."""
    try:
        agents: Mapping[str, Mapping[str, float]] = store.metrics(step)["agents"]
    except StoreError:
        return {}
    if agent:
        return agents.get(agent, {})
    names = dict.fromkeys(name for values in agents.values() for name in values)
    return {name: statistics.fmean(v[name] for v in agents.values() if name in v) for name in names}


def _plain(text: str) -> Any:
    try:
        return float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return text


def _groups(runs: Sequence[_Run], group: tuple[str, ...], columns: tuple[str, ...]) -> list[Row]:
    members: dict[tuple[str, ...], list[_Run]] = {}
    for run in runs:
        members.setdefault(tuple(exact_text(run.value(column)) for column in group), []).append(run)
    rows = []
    for key, group_runs in members.items():
        values: list[Any] = [*map(_group_value, map(group_runs[0].value, group)), len(group_runs)]
        for column in columns[len(group) + 1 :]:
            values_of_column = [value for run in group_runs if (value := run.value(column)) not in (None, "", [])]
            is_numeric = values_of_column and all(isinstance(value, int | float) for value in values_of_column)
            texts = list(dict.fromkeys(map(cell_text, values_of_column)))
            values.append(
                summarize(values_of_column) if is_numeric else texts[0] if len(texts) == 1 else f"{len(texts)} values"
            )
        rows.append(Row(json.dumps(key), tuple(values), members=tuple(run.name for run in group_runs)))
    return rows


def _group_value(value: Any) -> Any:
    """What stands in a column by which runs are grouped: all digits, so that no two groups look the same."""
    if isinstance(value, int):
        return value
    return " ".join(map(str, value)) if isinstance(value, list) else exact_text(value)


def _sorted(rows: Iterable[Row], value: Callable[[Row], Any], *, descending: bool) -> list[Row]:
    """Rows in order; those without a value are last in both directions."""
    numbers, texts, rows_without_value = list[tuple[float, Row]](), list[tuple[str, Row]](), list[Row]()
    for row in rows:
        row_value = value(row)
        number = _sort_number(row_value)
        if number is not None:
            numbers.append((number, row))
        elif row_value in (None, "", []):
            rows_without_value.append(row)
        else:
            texts.append((cell_text(row_value), row))
    numbers.sort(key=lambda pair: pair[0], reverse=descending)
    texts.sort(key=lambda pair: pair[0], reverse=descending)
    return [*(row for _, row in numbers), *(row for _, row in texts), *rows_without_value]


def _sort_number(value: Any) -> float | None:
    number = value.mean if isinstance(value, Summary) else value
    return float(number) if isinstance(number, int | float) and not math.isnan(number) else None
