"""Curves of a run's metrics, read from its step store; digests are checked, and each file is parsed once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.charts.charts import Chart, curves
from dashboards.charts.palette import agent_strokes
from flows.records.progress import Evaluation
from hacpo_core.errors import StoreError
from hacpo_core.phases.definitions import definition
from hacpo_core.store.steps import MANIFEST, StepStore

MAX_RUNS = 16
"""number of runs whose metrics are kept in memory"""
JOINT = "all agents"
"""the line of metrics that are not of a single agent"""
FIRST_METRICS = (
    "reward/mean",
    "capability/smoothed",
    "capability/ratio_to_",
    "ratio_cross/mean",
    "clip_cross/below_share",
    "clip_cross/above_share",
    "response/length_tokens",
    "update/entropy_nats",
    "sampler/logprob_difference_mean",
)
"""metrics that are shown unless others are chosen; a name that ends in "_" stands for all that begin with it"""
ABOUT_ACCURACY = "each benchmark's main metric before, during and after training"
_OPTIONS = ("smooth", "log_y")


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Committed metrics of a run by step, agent and name.

    Attributes:
        agents: by step; metrics of no single agent are under `JOINT`.
    """

    agents: dict[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Names of all metrics, sorted by area and name."""
        return sorted({name for agents in self.agents.values() for values in agents.values() for name in values})


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that a run has logged; `about` is "" for an estimator's own."""

    name: str
    about: str
    is_shown: bool


class CurveReader:
    """Reads metrics of runs; a step is read again only if its manifest has changed."""

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = max_runs
        self._steps_of_runs: OrderedDict[Path, dict[int, tuple[int, Any]]] = OrderedDict()
        self._mutex = threading.Lock()

    def read(self, root: Path, num_steps: int, *, first: int = 1) -> StepMetrics:
        """Metrics of steps `first` to `num_steps`."""
        with self._mutex:
            stored_steps = self._steps_of_runs.setdefault(root, {})
            self._steps_of_runs.move_to_end(root)
            while len(self._steps_of_runs) > self._max_runs:
                self._steps_of_runs.popitem(last=False)
        store, by_step = StepStore(root), {}
        for step in range(max(first, 1), num_steps + 1):
            try:
                stamp = (store.folder(step) / MANIFEST).stat().st_mtime_ns
            except OSError:
                continue
            if step not in stored_steps or stored_steps[step][0] != stamp:
                stored_steps[step] = (stamp, _step_metrics(store, step))
            value = stored_steps[step][1]
            if value is not None:
                by_step[step] = value
        return StepMetrics(by_step)


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


def by_area(names: Sequence[str], shown_names: Sequence[str]) -> dict[str, list[Metric]]:
    """The metrics grouped by area, the part of the name before "/"."""
    areas: dict[str, list[Metric]] = {}
    for name in names:
        areas.setdefault(name.partition("/")[0], []).append(Metric(name, definition(name), name in shown_names))
    return areas


def metrics_to_show(names: Sequence[str], requested: Sequence[str]) -> list[str]:
    """The metrics to show: those asked for that exist, or else the first ones."""
    existing = [name for name in dict.fromkeys(requested) if name in names]
    if existing:
        return existing
    return [name for first in FIRST_METRICS for name in names if name == first or _begins(name, first)]


def _begins(name: str, first: str) -> bool:
    return first.endswith("_") and name.startswith(first)


def metric_chart(metrics: StepMetrics, name: str) -> Chart | None:
    """A metric over steps, a line per agent; None if no agent has it. What is not finite is a gap."""
    rows = [
        (agent, step, values[name])
        for step, agents in sorted(metrics.agents.items())
        for agent, values in agents.items()
        if name in values and math.isfinite(values[name])
    ]
    return _chart(name.replace("/", "_"), definition(name) or name, name, rows) if rows else None


def accuracy_chart(evaluations: Sequence[Evaluation]) -> Chart | None:
    """Accuracy over steps, a line per agent and a panel per benchmark; None before the first evaluation."""
    finite_evaluations = [
        evaluation
        for evaluation in sorted(evaluations, key=lambda evaluation: evaluation.step)
        if math.isfinite(evaluation.value)
    ]
    if not finite_evaluations:
        return None
    rows = [(evaluation.agent, evaluation.step, evaluation.value) for evaluation in finite_evaluations]
    return _chart(
        "accuracy", ABOUT_ACCURACY, "accuracy", rows, [evaluation.benchmark for evaluation in finite_evaluations]
    )


def _chart(
    name: str, about: str, label: str, rows: Sequence[tuple[str, int, float]], benchmarks: Sequence[str] = ()
) -> Chart:
    table = pd.DataFrame(rows, columns=["line", "x", "value"]).assign(kind="mean", seed="", low=math.nan, high=math.nan)
    if benchmarks:
        table["benchmark"] = benchmarks
    facet = "benchmark" if len(set(benchmarks)) > 1 else ""
    strokes = agent_strokes(table["line"])
    chart = curves(name, about, table, x="step", y=label, strokes=strokes, facet=facet, line="agent")
    return replace(chart, options=_OPTIONS)
