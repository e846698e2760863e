"""Figures of an experiment's metrics and evaluations; a separate module, because matplotlib is slow to import."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from flows.planning.plans import Plan
from flows.runs.results import read_curves
from hacpo_core.evaluation.results import EvaluationResult, intact_results

_CURVES = {
    "reward": ("reward/mean", "mean reward of the step's rollouts"),
    "capability": ("capability/smoothed", "capability, mean of the last K steps"),
    "ratio_cross": ("ratio_cross/mean", "mean ratio of cross-agent responses"),
    "response_length": ("response/length_tokens", "mean response length, tokens"),
}


def curves_figure(plan: Plan) -> dict[str, Figure]:
    """Figures of the training curves, by name."""
    frame = read_curves(plan.root, plan.config)
    figures = {}
    for name, (pattern, label) in {**_CURVES, "accuracy": (r"evaluate/(.+)_accuracy", "accuracy")}.items():
        part = frame[frame.metric.str.fullmatch(pattern)]
        if part.empty:
            continue
        figure = Figure(figsize=(6, 3.5))
        figure.subplots_adjust(left=0.17, right=0.97, bottom=0.14, top=0.91)  # a layout engine would double the time
        axes = figure.subplots()
        for (agent, metric), curve in part.groupby(["agent", "metric"]):
            benchmark = re.sub(pattern, r"\1", str(metric)) if "(" in pattern else ""
            axes.plot(curve.step, curve.value, label=f"{agent} {benchmark}".strip())
        axes.set(xlabel="step", ylabel=label, title=plan.id)
        axes.legend(frameon=False)
        figures[name] = figure
    return figures


def benchmarks_figure(root: Path) -> Figure | None:
    """Bars of each benchmark's main metric before and after training, with intervals; one panel per agent.

    None if there are no evaluations.
    """
    results = list(intact_results(root))
    if not results:
        return None
    agents, names = (
        list(dict.fromkeys(getattr(result, name) for result in results)) for name in ("agent", "benchmark")
    )
    figure = Figure(figsize=(max(5.0, 1.6 * len(names) + 1.5), 3.4 * len(agents)), layout="constrained")
    panels = figure.subplots(len(agents), 1, sharex=True, squeeze=False)[:, 0]
    for axes, agent in zip(panels, agents, strict=True):
        for offset, when in ((-0.2, "before"), (0.2, "after")):
            shown = [_first_or_last(results, agent, name, when) for name in names]
            places = [place + offset for place, result in enumerate(shown) if result is not None]
            points = [result.headline_estimate for result in shown if result is not None]
            errors = [[p.value - p.low for p in points], [p.high - p.value for p in points]]
            axes.bar(places, [p.value for p in points], width=0.38, yerr=errors, capsize=3, label=when)
        axes.set(ylabel="accuracy", title=agent, ylim=(0, 1), xticks=range(len(names)))
    labels = {result.benchmark: f"{result.benchmark}\n{result.headline}" for result in results}
    panels[-1].set_xticklabels([labels[name] for name in names])
    panels[0].legend(frameon=False)
    return figure


def _first_or_last(
    results: Sequence[EvaluationResult], agent: str, benchmark: str, when: str
) -> EvaluationResult | None:
    """The evaluation "before" training, or the last one during or after it."""
    own = [result for result in results if (result.agent, result.benchmark) == (agent, benchmark)]
    candidates = [result for result in own if (result.step == 0) == (when == "before")]
    return max(candidates, key=lambda result: result.step, default=None)
