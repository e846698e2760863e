"""Tables in the paper's layouts as texts, with its values beside ours."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dashboards.formats import DASH, count, number_text
from dashboards.report.cells import REFERENCE
from dashboards.report.comparison import Comparer, Figure, TableLine
from dashboards.report.published import AVERAGE, BEFORE, printed_ratios
from dashboards.report.results import Results
from dashboards.report.statistics import Summary

HEADINGS = {
    "math500": "MATH-500",
    "math": "MATH",
    "gsm8k": "GSM8K",
    "aime2025": "AIME 2025",
    "amc23": "AMC 23",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
    AVERAGE: "AVG",
}


def with_interval(summary: Summary, digits: int = 3) -> str:
    """Mean ± half width as text; with one seed only the mean."""
    width = "" if math.isnan(summary.half_width) else f" ± {summary.half_width:.{digits}f}"
    return f"{summary.mean:.{digits}f}{width}"


def _figure_text(figure: Figure) -> str:
    """A value with its interval, and the paper's."""
    text = DASH if figure.summary is None else with_interval(figure.summary)
    return text if figure.paper is None else f"{text} (paper {figure.paper:.3f})"


def accuracy_table(tables: Sequence[Comparer], metric_kinds: Mapping[str, str]) -> pd.DataFrame:
    """Rows: an agent before training and with every method. Columns: benchmarks and, if several, their average; costs.

    Args:
        tables: of the pairs.
        metric_kinds: metrics of the benchmarks.
    """
    rows = [
        [table.pair, line.agent, line.variant.title, *map(_figure_text, line.figures), *_costs(line)]
        for table in tables
        for line in table.lines
        if line.agent in table.agents
    ]
    columns = [f"{HEADINGS.get(name, name)} {metric_kinds.get(name, '')}".strip() for name in tables[0].columns]
    return pd.DataFrame(rows, columns=["pair", "agent", "method", *columns, "tokens sampled", "GPU-hours", "seeds"])


def _costs(line: TableLine) -> list[str]:
    """Sampled tokens, GPU-hours if there were any, and seeds."""
    if line.variant.method == BEFORE:
        return ["", "", ""]
    hours = number_text(line.gpu_hours, ".3g") if line.gpu_hours else ""
    return [count(line.tokens) if line.tokens else "", hours, f"{line.num_seeds} of {line.num_planned}"]


def ratio_table(results: Results, *, is_printed: bool) -> pd.DataFrame | None:
    """Table 6: ratios of own and cross-agent responses over steps and seeds, and shares beyond the bounds.

    Args:
        results: of the grid.
        is_printed: show the paper's values beside those of qwen3-1.7b-base.

    Returns:
        None if no ratio was measured or printed.
    """
    printed = printed_ratios() if is_printed else {}
    rows = []
    for pair, agent in results.runs.places():
        for variant in results.runs.variants:
            frames = [frame.dropna() for frame in results.of(pair, agent, variant).values()]
            steps: Any = pd.concat(frames).groupby("metric")["value"] if frames else {}
            values_of = {str(metric): [float(value) for value in values] for metric, values in steps}
            for source, symbol in (("own", "s_homo"), ("cross", "s_hete")):
                values = values_of.get(f"ratio_{source}/mean", [])
                paper = printed.get(source, {}) if (agent, variant) == ("qwen3-1.7b-base", REFERENCE) else {}
                if not values and not paper:
                    continue
                figures = [DASH] * 4
                if values:
                    minimum, maximum = min(values), max(values)
                    spread = (sum(values) / len(values), maximum, minimum, maximum - minimum)
                    figures = [f"{value:.5f}" for value in spread]
                if paper:
                    figures = [f"{figure} (paper {p:.5f})" for figure, p in zip(figures, paper.values(), strict=True)]
                shares = [values_of.get(f"clip_{source}/{name}_share") for name in ("below", "above", "stopped")]
                percents = [f"{100 * sum(share) / len(share):.1f} %" if share else DASH for share in shares]
                rows.append([pair, agent, variant.title, symbol, *figures, *percents])
    columns = ["pair", "agent", "method", "ratio", "mean", "max", "min", "range", "below", "above", "no gradient"]
    return pd.DataFrame(rows, columns=columns) if rows else None
