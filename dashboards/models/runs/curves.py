"""Curves of a run's metrics, read from its step store; digests are checked, and each file is parsed once."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.charts.charts import Chart, curves
from dashboards.charts.palette import agent_strokes
from flows.records.progress import Evaluation
from hacpo_core.errors import StoreError
from hacpo_core.store.steps import MANIFEST, StepStore

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


def read_metrics(root: Path, *, first: int = 1) -> StepMetrics:
    """Committed metrics of a run from a step on; a step is read again only if its manifest has changed."""
    store, by_step = StepStore(root), {}
    for step in range(max(first, 1), store.last_step() + 1):
        with suppress(OSError, StoreError):  # the step is incomplete, or its file is damaged
            by_step[step] = _step_metrics(root, step, (store.folder(step) / MANIFEST).stat().st_mtime_ns)
    return by_step


@lru_cache(4096)
def _step_metrics(root: Path, step: int, _changed_ns: int) -> Any:
    value = StepStore(root).metrics(step)
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
    num_steps = Counter(benchmark for benchmark, _ in {(e.benchmark, e.step) for e in evaluations})
    scores = [e for e in evaluations if num_steps[e.benchmark] > 1 and not area]  # one point is no curve
    rows = [(f"accuracy on {e.benchmark}", e.agent, e.step, e.value) for e in scores]
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
