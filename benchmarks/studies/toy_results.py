"""Differences and costs of the toy grids' methods, for docs/results.md.

Usage: python -m benchmarks.studies.toy_results --runs-dir RUNS [GRID ...]; default: all grids.
Writes docs/results/<grid>.csv and, with the differences over all agents, <grid>.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from dashboards.charts.charts import Chart, forest
from dashboards.charts.pictures import svg
from dashboards.report.cells import Results, Variant, read_results
from dashboards.report.costs import pair_cost
from dashboards.report.differences import ALL, paired_difference
from dashboards.report.statistics import Difference, holm
from flows.grids.planner import plan_grid

BENCHMARK = "arithmetic_test"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
GSPO, GSPO_X2, NAIVE, HACPO = (Variant(name) for name in ("gspo", "gspo_x2", "naive", "hacpo"))
GRIDS = {
    "tiny_methods": (GSPO, GSPO_X2, NAIVE, HACPO),
    "tiny_baselines": (GSPO, GSPO_X2, NAIVE, HACPO),
    "tiny_why_naive": (GSPO, NAIVE, HACPO),
    "tiny_fresh_seeds": (NAIVE, HACPO),
}
"""grid and what its methods are compared with"""
_POINTS = 100  # per unit of accuracy


def _relative_tokens(results: Results, ours: Variant, theirs: Variant) -> dict[str, float]:
    """Sampled and trained tokens of all pairs, relative to another method's."""
    costs = [[pair_cost(results, pair, each, [BENCHMARK]) for each in (ours, theirs)] for pair in results.pairs]
    known = [(one, other) for one, other in costs if one is not None and other is not None]
    return {
        kind: sum(getattr(one, kind) for one, _ in known) / sum(getattr(other, kind) for _, other in known)
        for kind in ("sampled_tokens", "trained_tokens")
    }


def _rows(results: Results, ours: Variant, theirs: Variant) -> Iterator[dict[str, object]]:
    """All agents together, then each agent."""
    tokens = _relative_tokens(results, ours, theirs)
    for pair, agent, places in [(ALL, "", list(results.places)), *((*place, [place]) for place in results.places)]:
        found = paired_difference(results, ours, theirs, places, [BENCHMARK])
        if not isinstance(found, Difference):
            raise SystemExit(f"{ours.title} - {theirs.title}, {pair} {agent}: {found}; complete the grid first")
        yield {
            "method": ours.method,
            "label": ours.label,
            "against": theirs.method,
            "pair": pair,
            "agent": agent,
            "points": _POINTS * found.value,
            "low": _POINTS * found.low,
            "high": _POINTS * found.high,
            "p": found.p_value,
            "seeds": found.num_seeds,
            "seed_std": _POINTS * found.seed_std,
            "power_1_point": found.power(1 / _POINTS),
            **tokens,
        }


def measure(results: Results, baselines: tuple[Variant, ...]) -> pd.DataFrame:
    """One row per method, baseline and agent (or all agents), in points of accuracy.

    `p_holm` is corrected for all methods that are compared with the same baseline, over all agents and single agents
    separately. Tokens are relative to the baseline's.
    """
    tables = []
    for theirs in baselines:
        others = [ours for ours in results.variants if ours != theirs]
        table = pd.DataFrame(row for ours in others for row in _rows(results, ours, theirs))
        is_joint = table["pair"] == ALL
        for family in (is_joint, ~is_joint):
            table.loc[family, "p_holm"] = holm(table.loc[family, "p"].tolist())
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def picture(grid: str, table: pd.DataFrame) -> Chart:
    """Differences over all agents with their intervals, one panel per baseline."""
    joint = table[table["pair"] == ALL]
    titles = [Variant(*row).title for row in zip(joint["method"], joint["label"], strict=True)]
    sign = joint["points"].where(joint["p_holm"] < 0.05, 0.0)
    drawn = pd.DataFrame(
        {
            "label": titles,
            "value": joint["points"],
            "low": joint["low"],
            "high": joint["high"],
            "verdict": ["win" if each > 0 else "loss" if each < 0 else "tie" for each in sign],
            "note": [f"p = {p:.3f} (Holm)" for p in joint["p_holm"]],
            "against": [f"minus {Variant(name).title}" for name in joint["against"]],
        }
    )
    return forest(grid, "Mean difference over all agents", drawn, x="points of accuracy", facet="against")


def main() -> None:
    """Read the grids' runs and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("grids", nargs="*", default=list(GRIDS))
    options = parser.parse_args()
    for grid in options.grids:
        frame = measure(read_results(plan_grid(grid, runs_dir=options.runs_dir)), GRIDS[grid])
        frame.round(4).to_csv(RESULTS / f"{grid}.csv", index=False)
        (RESULTS / f"{grid}.svg").write_text(svg(picture(grid, frame)), encoding="utf-8")
        print(grid, frame[frame["pair"] == ALL].round(3).to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
