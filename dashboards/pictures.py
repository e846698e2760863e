"""Figures of a comparison as SVG, for the light and the dark colour scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from dashboards.models.comparison import Comparison, Point
from experiments.report.cells import Variant
from experiments.report.figures import svg_of

COST_LABELS = {"tokens": "tokens sampled, all agents shown", "hours": "hours"}
_INK = {"light": "#1c2126", "dark": "#e8eaed"}
_COLORS = {
    "light": ("#0b57d0", "#b3261e", "#146c2e", "#8a5000", "#6a3fb5", "#00696d", "#8b2f6b"),
    "dark": ("#8ab4f8", "#f2b8b5", "#81c995", "#fdd663", "#cfb3ff", "#78d9dd", "#f4a9d6"),
}


def hours_label(comparison: Comparison) -> str:
    """Axis label for the hours of a comparison."""
    return "GPU-hours" if comparison.has_gpu else "hours of phases (no GPU was used)"


def curves_svg(
    comparison: Comparison,
    curves: Mapping[Variant, Sequence[Point]],
    *,
    cost: str,
    printed: Mapping[Variant, float],
    scheme: str,
) -> str:
    """Plot accuracy against cost: a line per method with its interval over seeds, and the paper's values as diamonds.

    Args:
        comparison: to plot.
        curves: points of each method, in the order of the legend.
        cost: key of COST_LABELS.
        printed: the paper's value after training, drawn at the end of the line.
        scheme: "light" or "dark".
    """
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    label = COST_LABELS["tokens"] if cost == "tokens" else hours_label(comparison)
    for variant, points in curves.items():
        if not points:
            continue
        color = _color(comparison, variant, scheme)
        costs = [_cost(point, cost, comparison) for point in points]
        values = [point.value for point in points]
        axes.plot(costs, values, color=color, marker="o", markersize=3, label=variant.title)
        if not any(math.isnan(point.half_width) for point in points):
            low = [point.value - point.half_width for point in points]
            high = [point.value + point.half_width for point in points]
            axes.fill_between(costs, low, high, color=color, alpha=0.15, linewidth=0)
        if variant in printed:
            axes.plot([costs[-1]], [printed[variant]], color=color, marker="D", markersize=8, fillstyle="none", ls="")
    axes.set_xlabel(label, parse_math=False)
    axes.set_ylabel("accuracy", parse_math=False)
    _legend(axes, figure)
    return _svg(figure, scheme)


def results_svg(comparison: Comparison, *, column: int, scheme: str) -> str:
    """Plot accuracy after training: a panel per agent, a row per method, the paper's value as a diamond."""
    agents = list(dict.fromkeys(line.agent for line in comparison.lines))
    height = 0.34 * max(len(comparison.variants) + 1, 3) + 0.7
    figure = Figure(figsize=(7.2, height * max(len(agents), 1)), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(max(len(agents), 1), 1, squeeze=False, sharex=True)[:, 0]
    for axes, agent in zip(panels, agents, strict=False):
        lines = [line for line in comparison.lines if line.agent == agent]
        for row, line in enumerate(lines):
            shown = line.figures[column]
            color = _color(comparison, line.variant, scheme)
            if shown.summary is not None:
                width = shown.summary.half_width
                axes.errorbar(
                    [shown.summary.mean], [row], xerr=None if math.isnan(width) else [width], fmt="o", color=color,
                    capsize=3,
                )  # fmt: skip
            if shown.printed is not None:
                axes.plot([shown.printed], [row], marker="D", markersize=8, color=color, fillstyle="none", ls="")
        axes.set_yticks(range(len(lines)), [line.variant.title for line in lines], parse_math=False)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.set_title(agent, parse_math=False, fontsize="medium")
    panels[-1].set_xlabel(f"accuracy, {comparison.columns[column]} (diamond: paper)", parse_math=False)
    return _svg(figure, scheme)


def _cost(point: Point, cost: str, comparison: Comparison) -> float:
    if cost == "tokens":
        return point.tokens
    return point.gpu_hours if comparison.has_gpu else point.hours


def _color(comparison: Comparison, variant: Variant, scheme: str) -> str:
    colors = _COLORS[scheme]
    return colors[comparison.variants.index(variant) % len(colors)] if variant in comparison.variants else _INK[scheme]


def _legend(axes: mpl.axes.Axes, figure: Figure) -> None:
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
        for text in legend.get_texts():
            text.set_parse_math(False)


def _svg(figure: Figure, scheme: str) -> str:
    """The figure as SVG, with a transparent background and text in the scheme's colour."""
    ink = _INK[scheme]
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.tick_params(colors=ink)
        for part in (axes.xaxis.label, axes.yaxis.label, axes.title):
            part.set_color(ink)
        for spine in axes.spines.values():
            spine.set_color(ink)
    for legend in figure.legends:
        for text in legend.get_texts():
            text.set_color(ink)
    return svg_of(figure, salt="comparison")  # shown as an <img>, so ids cannot collide
