"""Curves of a run's metrics, read from its step store; digests are checked, and each file is parsed once."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.charts.charts import Chart, curves
from dashboards.charts.palette import agent_strokes
from flows.records.progress import Evaluation
from hacpo_core.errors import StoreError
from hacpo_core.store.steps import MANIFEST, StepStore

MAX_RUNS = 16
"""number of runs whose metrics are kept in memory"""
JOINT = "all agents"
"""the line of metrics that are not of a single agent"""
FIRST_METRICS = (
    "reward/mean",
    "ratio_own/mean",
    "ratio_cross/mean",
    "clip_own/stopped_share",
    "clip_cross/stopped_share",
)
"""metrics of the first chart, behind the accuracies; all others are folded, a chart per area"""
StepMetrics = Mapping[int, Mapping[str, Mapping[str, float]]]
"""committed metrics of a run by step, agent (or JOINT) and name"""


class CurveReader:
    """Reads metrics of runs; a step is read again only if its manifest has changed."""

    def __init__(self) -> None:
        self._steps_of_runs: dict[Path, dict[int, tuple[int, Any]]] = {}
        self._mutex = threading.Lock()

    def read(self, root: Path, num_steps: int, *, first: int = 1) -> StepMetrics:
        """Metrics of steps `first` to `num_steps`."""
        with self._mutex:
            stored_steps = self._steps_of_runs.pop(root, {})
            self._steps_of_runs[root] = stored_steps  # the last one used is the last one dropped
            while len(self._steps_of_runs) > MAX_RUNS:
                del self._steps_of_runs[next(iter(self._steps_of_runs))]
        store, by_step = StepStore(root), {}
        for step in range(max(first, 1), num_steps + 1):
            try:
                stamp = (store.folder(step) / MANIFEST).stat().st_mtime_ns
            except OSError:
                continue
            if step not in stored_steps or stored_steps[step][0] != stamp:
                stored_steps[step] = (stamp, _step_metrics(store, step))
            if stored_steps[step][1] is not None:
                by_step[step] = stored_steps[step][1]
        return by_step


def _step_metrics(store: StepStore, step: int) -> Any:
    """Metrics of the agents; None if the step is incomplete, or if its file is damaged."""
    try:
        value = store.metrics(step)
    except StoreError:
        return None
    agents = value["agents"]
    of_agents = {name for values in agents.values() for name in values}
    joint = {name: number for name, number in value["run"].items() if name not in of_agents}
    joint.pop("progress/step", None)
    return agents | ({JOINT: joint} if joint else {})


def folded_areas(metrics: StepMetrics) -> dict[str, list[str]]:
    """Names of the metrics that the first chart does not show, by area: the part of the name before "/"."""
    areas: dict[str, list[str]] = {}
    names = {name for agents in metrics.values() for values in agents.values() for name in values}
    for name in sorted(names.difference(FIRST_METRICS)):
        areas.setdefault(name.partition("/")[0], []).append(name)
    return areas


def run_chart(metrics: StepMetrics, evaluations: Sequence[Evaluation], area: str = "") -> Chart | None:
    """A panel per metric over steps, a line per agent: of one area, or else accuracies and FIRST_METRICS.

    What is not finite is a gap; None if nothing was measured.
    """
    names = folded_areas(metrics).get(area, []) if area else FIRST_METRICS
    rows = [] if area else [(f"accuracy on {e.benchmark}", e.agent, e.step, e.value) for e in evaluations]
    rows += [row for name in names for row in _rows(metrics, name)]
    rows = sorted((row for row in rows if math.isfinite(row[3])), key=lambda row: row[2])
    if not rows:
        return None
    order = dict.fromkeys([*sorted({row[0] for row in rows}.difference(names)), *names])
    rows = [row for name in order for row in rows if row[0] == name]
    table = pd.DataFrame(rows, columns=["metric", "line", "x", "value"])
    table = table.assign(kind="mean", seed="", low=math.nan, high=math.nan)
    strokes = agent_strokes(table["line"])
    chart = curves(
        area or "curves", "", table, x="step", y="", strokes=strokes, facet="metric", line="agent", shares_y=False
    )
    return replace(chart, options=("smooth", "log_y"))


def _rows(metrics: StepMetrics, name: str) -> Iterator[tuple[str, str, int, float]]:
    for step, agents in metrics.items():
        for agent, values in agents.items():
            if name in values:
                yield name, agent, step, values[name]
