"""Pictures of what an experiment's store holds; a module of their own, for matplotlib is slow to load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from flows.runs.results import read_curves
from hacpo_core.evaluation.results import EvaluationResult, intact_results
from hacpo_core.experiment import Experiment

_CURVES = {
    "reward": ("reward/mean", "mean reward of the step's rollouts"),
    "capability": ("capability/smoothed", "capability, mean of the last K steps"),
    "ratio_cross": ("ratio_cross/mean", "mean ratio of cross-agent responses"),
    "response_length": ("response/length_tokens", "mean response length, tokens"),
}


def curves_figure(experiment: Experiment) -> dict[str, Figure]:
    """The training curves as figures, by name."""
    frame = read_curves(experiment.ledger.store.root, experiment.config)
    figures = {}
    for name, (pattern, label) in {**_CURVES, "accuracy": (r"evaluate/(.+)_accuracy", "accuracy")}.items():
        part = frame[frame.metric.str.fullmatch(pattern)]
        if part.empty:
            continue
        figure = Figure(figsize=(6, 3.5))
        figure.subplots_adjust(left=0.17, right=0.97, bottom=0.14, top=0.91)  # to find such margins takes as long again
        axes = figure.subplots()
        for (agent, metric), curve in part.groupby(["agent", "metric"]):
            benchmark = re.sub(pattern, r"\1", str(metric)) if "(" in pattern else ""
            axes.plot(curve.step, curve.value, label=f"{agent} {benchmark}".strip())
        axes.set(xlabel="step", ylabel=label, title=experiment.id)
        axes.legend(frameon=False)
        figures[name] = figure
    return figures


def benchmarks_figure(root: Path) -> Figure | None:
    """Each benchmark's own metric before training and after the last evaluated step, agent by agent, with intervals.

    None where there is no evaluation.
    """
    found = list(intact_results(root))
    if not found:
        return None
    agents, names = (list(dict.fromkeys(getattr(result, name) for result in found)) for name in ("agent", "benchmark"))
    figure = Figure(figsize=(max(5.0, 1.6 * len(names) + 1.5), 3.4 * len(agents)), layout="constrained")
    panels = figure.subplots(len(agents), 1, sharex=True, squeeze=False)[:, 0]
    for axes, agent in zip(panels, agents, strict=True):
        for offset, when in ((-0.2, "before"), (0.2, "after")):
            shown = [_at_one_end(found, agent, name, when) for name in names]
            places = [place + offset for place, result in enumerate(shown) if result is not None]
            points = [result.headline_estimate for result in shown if result is not None]
            errors = [[p.value - p.low for p in points], [p.high - p.value for p in points]]
            axes.bar(places, [p.value for p in points], width=0.38, yerr=errors, capsize=3, label=when)
        axes.set(ylabel="accuracy", title=agent, ylim=(0, 1), xticks=range(len(names)))
    labels = {result.benchmark: f"{result.benchmark}\n{result.headline}" for result in found}
    panels[-1].set_xticklabels([labels[name] for name in names])
    panels[0].legend(frameon=False)
    return figure


def _at_one_end(found: Sequence[EvaluationResult], agent: str, benchmark: str, when: str) -> EvaluationResult | None:
    """The evaluation before training, or the last one after some of it."""
    own = [result for result in found if (result.agent, result.benchmark) == (agent, benchmark)]
    ends = [result for result in own if (result.step == 0) == (when == "before")]
    return max(ends, key=lambda result: result.step, default=None)
