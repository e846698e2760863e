"""A self-contained HTML page about several experiments: the table, the curves, the settings."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from flows.build import Plan
from flows.compose import to_yaml
from flows.experiment import read_final
from flows.results import read_curves
from hacpo_core.store import write_atomically

CHARTS = {
    "evaluate/arithmetic_dev_accuracy": "greedy accuracy, development split",
    "reward/mean": "mean reward of the step's rollouts (mean of 5 steps)",
    "capability/smoothed": "capability: reward mean of the last K steps",
    "ratio_cross/mean": "ratio of other agents' responses",
    "clip_cross/stopped_share": "share of other agents' responses without gradient",
    "response/length_tokens": "response length, tokens",
}
SMOOTHED = {"reward/mean"}

STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.3rem .7rem;text-align:right;
border-bottom:1px solid #8884}td:nth-child(-n+4),th:nth-child(-n+4){text-align:left}
figure{margin:1.5rem 0}svg{max-width:100%;height:auto;background:#fff}pre{overflow-x:auto;background:#8881;padding:1rem}
"""


def write_report(plans: Sequence[Plan], path: Path, *, title: str) -> Path:
    """Write the page about all complete experiments among the plans.

    Args:
        plans: experiments; those without a result are named as missing.
        path: of the HTML file.
        title: of the page.
    """
    results = {planned.id: read_final(planned) for planned in plans}
    rows = [row for result in results.values() if result is not None for row in result.table]
    missing = [name for name, result in results.items() if result is None]
    done = [planned for planned in plans if results[planned.id] is not None]
    curves = pd.concat([_labelled(planned) for planned in done], ignore_index=True) if done else pd.DataFrame()
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"]
    parts += [f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"]
    parts += [_table(pd.DataFrame(rows)) if rows else "<p>No experiment is complete.</p>"]
    parts += [f"<p>Missing: {html.escape(', '.join(missing))}</p>"] if missing else []
    for metric, label in CHARTS.items():
        part = curves[curves.metric == metric] if len(curves) else curves
        if len(part):
            parts.append(f"<figure>{_chart(part, label, is_smoothed=metric in SMOOTHED)}</figure>")
    if done:
        parts.append("<h2>Settings of the last experiment</h2>")
        parts.append(f"<pre>{html.escape(to_yaml(done[-1].config))}</pre>")
    write_atomically(path, lambda temporary: temporary.write_text("\n".join(parts), encoding="utf-8"))
    return path


def _labelled(planned: Plan) -> pd.DataFrame:
    frame = read_curves(planned.root, planned.config)
    return frame.assign(method=planned.config.method.name, seed=planned.config.seed)


def _table(frame: pd.DataFrame) -> str:
    return str(frame.to_html(index=False, border=0, float_format=lambda value: f"{value:.3f}", escape=True))


def _chart(frame: pd.DataFrame, label: str, *, is_smoothed: bool) -> str:
    """One panel per agent, one line per method: the mean over seeds, with the range between them."""
    agents = list(dict.fromkeys(frame.agent))
    figure = Figure(figsize=(5.2 * len(agents), 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, len(agents), sharey=True, squeeze=False)[0]
    for axes, agent in zip(panels, agents, strict=True):
        for method, part in frame[frame.agent == agent].groupby("method", sort=False):
            table = part.pivot_table(index="step", columns="seed", values="value")
            if is_smoothed:
                table = table.rolling(5, min_periods=1).mean()
            (line,) = axes.plot(table.index, table.mean(axis=1), label=str(method))
            if table.shape[1] > 1:
                axes.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=line.get_color(), alpha=0.15)
        axes.set(title=str(agent), xlabel="step")
    panels[0].set_ylabel(label)
    panels[-1].legend(frameon=False, fontsize="small")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)
