"""When does sharing pay: gain of each method over GSPO against the likelihood of the partners' rows.

Usage: python -m benchmarks.distance_map docs/results/tiny_distance/results.json.gz [distance.svg]
prints the tables and writes the picture; the results come from `hacpo report tiny_distance`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.tables import table
from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.charts.palette import method_strokes
from dashboards.charts.pictures import svg
from dashboards.formats import number_text, signed
from dashboards.report import load_results
from dashboards.report.cells import Variant
from dashboards.report.compared import EVERY_PAIR, TOGETHER
from dashboards.report.differences import comparisons
from dashboards.report.results import Results

BASELINE, SHARING = Variant("gspo"), Variant("naive")


def mean_metric(
    results: Results, pair: str, agents: Sequence[str], variant: Variant, metric: str, step: int | None
) -> float:
    """A metric of a pair's training, mean over agents and seeds; nan if it was not measured.

    Args:
        results: of the grid.
        pair: name.
        agents: whose metric.
        variant: method.
        metric: name.
        step: of the training; None: mean over all.
    """
    frames = pd.concat([frame for agent in agents for frame in results.of(pair, agent, variant).values()])
    shown = frames[(frames.metric == metric) & ((frames.step == step) | (step is None))]
    return float(shown["value"].mean())


def gains(results: Results) -> pd.DataFrame:
    """A row per pair, agent (or all together) and method.

    Returns:
        pair, agent, line (the method), x (mean ratio of the partners' rows in step 1 of Naive), value, low, high (gain
        over GSPO in points, with its 95 % interval), verdict, stopped (share of the partners' rows whose gradient the
        bounds stop, mean over steps; nan without such rows).
    """
    agents_of: dict[str, list[str]] = {}
    for pair, agent in results.runs.places():
        agents_of.setdefault(pair, []).append(agent)
    rows = []
    for row in comparisons(results.runs, [BASELINE.method])[-1].rows:
        if row.pair == EVERY_PAIR or isinstance(row.difference, str):
            continue
        agents, difference = agents_of[row.pair] if row.agent == TOGETHER else [row.agent], row.difference
        ratio = mean_metric(results, row.pair, agents, SHARING, "ratio_cross/mean", 1)
        stopped = mean_metric(results, row.pair, agents, row.ours, "clip_cross/stopped_share", None)
        measured = {"value": difference.value, "low": difference.low, "high": difference.high, "x": ratio}
        labels = {"pair": row.pair, "agent": row.agent, "line": row.ours.title, "kind": "mean", "seed": ""}
        rows.append({**labels, **measured, "verdict": row.word, "stopped": stopped})
    return pd.DataFrame(rows)


def picture(gains: pd.DataFrame) -> Chart:
    """Mean gain of a pair's agents against their mean ratio."""
    shown = gains[gains["agent"] == TOGETHER].assign(x=100 * gains["x"])
    strokes = method_strokes(shown["line"])
    x, y = "mean ratio of the partner's rows in step 1, %", "gain over GSPO, points"
    return charts.curves("distance", "", shown, x=x, y=y, strokes=strokes)


def tables(gains: pd.DataFrame) -> str:
    """Two Markdown tables: gains with intervals, bold beyond noise; the share of partners' rows that are stopped."""
    methods, shown = list(dict.fromkeys(gains["line"])), [list[list[str]](), list[list[str]]()]
    in_order = gains.assign(pair=pd.Categorical(gains["pair"], gains["pair"].unique())).sort_values(
        "pair", kind="stable"
    )
    for (pair, agent), rows in in_order.groupby(["pair", "agent"], sort=False, observed=True):
        cells = [list[str](), list[str]()]
        for row in rows.set_index("line").loc[methods].to_dict("records"):
            gain = signed(row["value"]) if row["verdict"] == "tie" else f"**{signed(row['value'])}**"
            cells[0].append(f"{gain} ({signed(row['low'])} to {signed(row['high'])})")
            cells[1].append(number_text(row["stopped"], ".0%"))
        for table_rows, figures in zip(shown, cells, strict=True):
            table_rows.append([str(pair), str(agent), f"{rows['x'].iloc[0]:.2f}", *figures])
    heads = [["gain over GSPO", "agent", "mean ratio", *methods], ["rows stopped", "agent", "mean ratio", *methods]]
    return "\n\n".join(table(head, rows) for head, rows in zip(heads, shown, strict=True))


def main(source: Path, target: Path | None) -> None:
    """Print the tables, and write the picture if there is a target."""
    found = gains(load_results(source))
    print(tables(found))
    if target is not None:
        target.write_text(svg(picture(found)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
