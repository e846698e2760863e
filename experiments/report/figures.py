"""Training curves as SVG: one panel per agent, one line per method, with the range over seeds as a band."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator, Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from experiments.report.cells import REFERENCE, Results, Variant
from experiments.report.document import Picture

_CURVE_LABELS = {
    "reward/mean": "mean reward of the step's rollouts (mean of 5 steps)",
    "capability/smoothed": "capability: mean reward of the last K steps",
    "ratio_cross/mean": "mean ratio of cross-agent responses",
    "clip_cross/stopped_share": "share of cross-agent rows whose gradient is clipped",
    "response/length_tokens": "mean response length, tokens",
}
SMOOTHED = {"reward/mean": 5}
LINES_AT_MOST = 5
_settings = threading.Lock()
"""matplotlib's settings are global, and the dashboard draws in several threads"""


def training_curves(results: Results) -> Iterator[Picture]:
    """One figure per metric, accuracies first, and per LINES_AT_MOST methods; each shows HACPO if the grid has it."""
    accuracies = sorted({m for run in results.runs for m in run.curves.metric if m.startswith("evaluate/")})
    labels = {
        metric: f"accuracy on {metric.removeprefix('evaluate/').removesuffix('_accuracy')}"
        for metric in accuracies
        if metric.endswith("_accuracy") and _is_curve(results, metric)
    }
    for metric, label in {**labels, **_CURVE_LABELS}.items():
        for number, variants in enumerate(_batches(results.variants)):
            svg = _draw(results, variants, metric, label)
            if svg:
                name = re.sub(r"[^A-Za-z0-9]+", "_", metric) + (f"_{number + 1}" if number else "")
                yield Picture(name, svg, f"{label[0].upper()}{label[1:]}: {'; '.join(v.title for v in variants)}.")


def svg_of(figure: Figure, *, salt: str) -> str:
    """The figure as an SVG element; deterministic.

    Args:
        figure: with an SVG canvas.
        salt: element ids are hashed with it; must differ between the figures of a page.
    """
    out = io.StringIO()
    with _settings, mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)


def _is_curve(results: Results, metric: str) -> bool:
    """Whether the metric was measured between the first and the last step."""
    return any(
        0 < step < run.plan.config.train.num_steps
        for run in results.runs
        for step in run.curves.loc[run.curves.metric == metric, "step"]
    )


def _batches(variants: Sequence[Variant]) -> Iterator[list[Variant]]:
    if len(variants) <= LINES_AT_MOST or REFERENCE not in variants:
        for first in range(0, len(variants), LINES_AT_MOST):
            yield list(variants[first : first + LINES_AT_MOST])
        return
    others = [variant for variant in variants if variant != REFERENCE]
    for first in range(0, len(others), LINES_AT_MOST - 1):
        yield [*others[first : first + LINES_AT_MOST - 1], REFERENCE]


def _draw(results: Results, variants: Sequence[Variant], metric: str, label: str) -> str:
    """Draw a metric with a row of panels per pair and a column per agent; "" if nothing was measured."""
    tables = {
        (place, variant): _by_seed(results, place, variant, metric) for place in results.places for variant in variants
    }
    pairs = [pair for pair in results.pairs if _has_any(tables, pair)]
    if not pairs:
        return ""
    agents = {pair: results.agents(pair) for pair in pairs}
    num_columns = max(map(len, agents.values()))
    figure = Figure(figsize=(5.2 * num_columns, 3.4 * len(pairs)), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(len(pairs), num_columns, sharey="row", squeeze=False)
    for row, pair in zip(panels, pairs, strict=True):
        for axes in row[len(agents[pair]) :]:
            axes.set_axis_off()
        for axes, agent in zip(row, agents[pair], strict=False):
            for variant in variants:
                color = "black" if variant == REFERENCE else f"C{results.variants.index(variant) % 10}"
                _line(axes, tables[(pair, agent), variant], variant.title, color, SMOOTHED.get(metric, 1))
            axes.set_title(f"{agent} ({pair})" if len(pairs) > 1 else agent, parse_math=False, fontsize="medium")
            axes.set_xlabel("step")
        row[0].set_ylabel(label, parse_math=False, fontsize="small")
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    shown = [lines[variant.title] for variant in variants if variant.title in lines]
    figure.legend(handles=shown, loc="outside lower center", ncols=len(variants), frameon=False, fontsize="small")
    return svg_of(figure, salt=f"{metric} {[variant.title for variant in variants]}")


def _has_any(tables: dict[tuple[tuple[str, str], Variant], pd.DataFrame], pair: str) -> bool:
    return any(not table.empty for ((where, _), _), table in tables.items() if where == pair)


def _by_seed(results: Results, place: tuple[str, str], variant: Variant, metric: str) -> pd.DataFrame:
    """A metric of one agent and method: a row per step, a column per seed."""
    runs = results.of(*place, variant)
    columns = {
        seed: run.curves[run.curves.metric == metric].set_index("step")["value"] for seed, run in sorted(runs.items())
    }
    return pd.DataFrame({seed: column for seed, column in columns.items() if len(column)})


def _line(axes: Axes, table: pd.DataFrame, title: str, color: str, window: int) -> None:
    """Plot the mean over seeds, and their range as a band."""
    if table.empty:
        return
    smooth = table.rolling(window, min_periods=1).mean() if window > 1 else table
    axes.plot(smooth.index, smooth.mean(axis=1), label=title, color=color)
    if smooth.shape[1] > 1:
        axes.fill_between(smooth.index, smooth.min(axis=1), smooth.max(axis=1), color=color, alpha=0.15, linewidth=0)
