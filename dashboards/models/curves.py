"""Training curves of a run, read from its step store; digests are checked, and each file is parsed once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.records.progress import Evaluated
from hacpo_core.errors import StoreError
from hacpo_core.store.steps import MANIFEST, StepStore

MOST_RUNS = 16
"""number of runs whose metrics are kept in memory"""


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """A chart and the metrics that it shows."""

    id: str
    title: str
    about: str
    metrics: Mapping[str, str]
    """maps a metric's name, or a prefix that ends in "_", to the text after the agent's name in the legend"""


CHARTS = (
    ChartSpec("reward", "Reward", "mean verified reward of the step's responses", {"reward/mean": ""}),
    ChartSpec("capability", "Capability", "mean reward of the last K steps", {"capability/smoothed": ""}),
    ChartSpec(
        "omega", "Capability ratio ω", "bounded ratio to each other agent (Eq. 8)", {"capability/ratio_to_": "/"}
    ),
    ChartSpec("s_hete", "s_hete", "mean sequence ratio of the other agents' responses", {"ratio_cross/mean": ""}),
    ChartSpec(
        "s_hete_shares",
        "s_hete at its bounds",
        "share of the other agents' rows below the floor, and above the upper bound (1 under HACPO)",
        {"clip_cross/below_share": "below", "clip_cross/above_share": "above"},
    ),
    ChartSpec("length", "Response length", "mean, tokens", {"response/length_tokens": ""}),
    ChartSpec(
        "sampler",
        "Sampler against learner",
        "mean absolute difference of token log-probabilities, nats",
        {"sampler/logprob_difference_mean": ""},
    ),
    ChartSpec(
        "cosine",
        "Gradient cosine",
        "cosine between the gradients of J_homo and J_hete (positive by Theorem 4.3)",
        {"update/gradient_cosine": ""},
    ),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at the steps of the chart; None where nothing was measured."""

    label: str
    values: list[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart's lines over steps."""

    id: str
    title: str
    about: str
    steps: list[int]
    lines: list[Curve]


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Committed metrics of a run by step; `num_torn` counts steps with corrupt files."""

    agents: dict[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    num_torn: int = 0


class CurveReader:
    """Reads metrics of runs; a step is read again only if its manifest has changed."""

    def __init__(self, most_runs: int = MOST_RUNS) -> None:
        self._most_runs = most_runs
        self._known: OrderedDict[Path, dict[int, tuple[int, Any]]] = OrderedDict()
        self._mutex = threading.Lock()

    def read(self, root: Path, num_steps: int) -> StepMetrics:
        """Metrics of steps 1 to `num_steps`."""
        with self._mutex:
            known = self._known.setdefault(root, {})
            self._known.move_to_end(root)
            while len(self._known) > self._most_runs:
                self._known.popitem(last=False)
        store, by_step, num_torn = StepStore(root), {}, 0
        for step in range(1, num_steps + 1):
            try:
                stamp = (store.folder(step) / MANIFEST).stat().st_mtime_ns
            except OSError:
                continue
            if step not in known or known[step][0] != stamp:
                known[step] = (stamp, _step_metrics(store, step))
            value = known[step][1]
            if isinstance(value, StoreError):
                num_torn += 1
            elif value is not None:
                by_step[step] = value
        return StepMetrics(by_step, num_torn)


def _step_metrics(store: StepStore, step: int) -> Any:
    """Metrics of the agents; None if the step is incomplete, the error if the file is corrupt."""
    try:
        value = store.metrics(step)
        return value["agents"]
    except StoreError as error:
        return error if "metrics" in store.committed(step) else None


def charts(metrics: StepMetrics, evaluations: Sequence[Evaluated], since: int = 0) -> list[Chart]:
    """Charts of the run page.

    Args:
        metrics: of the steps.
        evaluations: of all agents.
        since: omit steps up to this one.
    """
    steps = [step for step in sorted(metrics.agents) if step > since]
    reward_chart, *others = [_chart(spec, metrics, steps) for spec in CHARTS]
    return [reward_chart, accuracy_chart(evaluations), *others]


def _chart(spec: ChartSpec, metrics: StepMetrics, steps: list[int]) -> Chart:
    lines: dict[str, list[float | None]] = {}
    for place, step in enumerate(steps):
        for agent, values in metrics.agents[step].items():
            for label, value in _lines(agent, values, spec.metrics):
                lines.setdefault(label, [None] * len(steps))[place] = value if math.isfinite(value) else None
    return Chart(spec.id, spec.title, spec.about, steps, [Curve(label, values) for label, values in lines.items()])


def _lines(agent: str, values: Mapping[str, float], metrics: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for prefix, label in metrics.items():
        for name, value in values.items():
            if name == prefix:
                yield f"{agent} {label}".strip(), value
            elif prefix.endswith("_") and name.startswith(prefix):
                yield f"{agent} {label} {name.removeprefix(prefix)}", value


def accuracy_chart(evaluations: Sequence[Evaluated]) -> Chart:
    """Accuracy of every agent on every evaluated benchmark, over steps."""
    steps = sorted({evaluation.step for evaluation in evaluations})
    lines: dict[str, list[float | None]] = {}
    for evaluation in evaluations:
        values = lines.setdefault(f"{evaluation.agent} on {evaluation.benchmark}", [None] * len(steps))
        values[steps.index(evaluation.step)] = evaluation.value if math.isfinite(evaluation.value) else None
    return Chart(
        "accuracy",
        "Accuracy",
        "each benchmark's main metric before, during and after training",
        steps,
        [Curve(label, values) for label, values in lines.items()],
    )
