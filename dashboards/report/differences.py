"""The report's differences between methods, paired by agent, seed and problem.

Shapes: A agent, S seed, P problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboards.charts.charts import Chart
from dashboards.report.cells import Results, Variant, method_of_interest, paired_scores
from dashboards.report.compared import EVERY_PAIR, TOGETHER, ComparedRow, forest, holm_corrected
from dashboards.report.published import AVERAGE
from dashboards.report.statistics import Difference, p_text, paired_bootstrap
from dashboards.report.tables import DASH, PaperValues, number_text
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.metrics import Floats

ENOUGH_SEEDS = 5
_SAME = "same experiments"
"""two entries of a grid with equal settings: there is nothing to compare"""
_PairAgent = tuple[str, str]


def paired_difference(
    results: Results, ours: Variant, theirs: Variant, places: Sequence[_PairAgent], benchmarks: Sequence[str]
) -> Difference | str:
    """Ours − theirs over some (pair, agent) places, on the seeds that all of them have for both methods.

    Returns:
        difference in points (1/100 of accuracy), or the reason why there is none.
    """
    runs = [(results.of(*place, ours), results.of(*place, theirs)) for place in places]
    common = [set(a) & set(b) for a, b in runs]
    seeds = sorted(set.intersection(*common)) if common else []
    if not seeds or not benchmarks:
        return "no common seed"
    if all(a[s].cell.experiment == b[s].cell.experiment for a, b in runs for s in seeds):
        return _SAME
    difference_ASP: dict[str, Floats] = {}
    for name in benchmarks:
        if any(name not in by_seed[s].after for pair in runs for by_seed in pair for s in seeds):
            return f"no evaluation on {name}"
        try:
            rows = [paired_scores(results, [a[s] for s in seeds], [b[s] for s in seeds], name) for a, b in runs]
        except StoreError as error:
            return f"responses cannot be read: {error}"
        scores = [row for row in rows if row is not None]
        if len(scores) < len(rows) or len({row.shape for row in scores}) > 1:
            return "different problems"
        difference_ASP[name] = 100 * np.stack(scores)
        if np.isnan(difference_ASP[name]).any(axis=(0, 1)).all():
            return "no problem scored in both"
    return paired_bootstrap(difference_ASP)


def _figures(row: ComparedRow) -> list[str]:
    """The numbers of a table's row."""
    d = row.difference
    if isinstance(d, str):
        return [f"{DASH} ({d})", *[DASH] * 8]
    return [
        f"{d.value:+.1f}",
        f"{d.low:+.1f} to {d.high:+.1f}",
        p_text(d.p_value).removeprefix("= "),
        p_text(row.corrected_p).removeprefix("= "),
        number_text(d.seed_std, ".1f"),
        number_text(100 * d.power(1.0), ".0f", " %"),
        f"{d.num_seeds}{' (few)' if d.num_seeds < ENOUGH_SEEDS else ''}",
        f"{d.num_problems:,}",
        str(d.num_dropped),
    ]


_COLUMNS = (
    "points", "95 % interval", "p", "p, Holm", "sd of seeds", "power, 1 point", "seeds", "problems", "dropped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparisonSection:
    """Methods compared with each other, as a part of the report."""

    title: str
    name: str
    rows: tuple[ComparedRow, ...]

    @property
    def headline(self) -> ComparedRow | None:
        """One method against the best of the others; None if several are compared, or nothing yet."""
        leads = {row.difference.value: row for row in self.joint_rows if isinstance(row.difference, Difference)}
        has_one_method = len({row.ours for row in self.rows}) == 1
        return leads[min(leads)] if leads and has_one_method else None

    @property
    def joint_rows(self) -> list[ComparedRow]:
        """The rows over all agents."""
        return [row for row in self.rows if row.pair == EVERY_PAIR]

    @property
    def verdicts(self) -> pd.DataFrame:
        """A line per comparison over all agents."""
        columns = ["methods", "verdict", "points", "95 % interval", "p, Holm", "seeds"]
        lines = [[row.title, row.word, *np.array(_figures(row))[[0, 1, 3, 6]]] for row in self.joint_rows]
        return pd.DataFrame(lines, columns=columns)

    @property
    def differences(self) -> pd.DataFrame:
        """A line per comparison and agent, and over all agents."""
        lines = [
            [row.title, row.pair, row.agent, *_figures(row), number_text(row.paper, "+.1f").replace(DASH, "")]
            for row in self.rows
        ]
        return pd.DataFrame(lines, columns=["methods", "pair", "agent", *_COLUMNS, "paper, points"])

    @property
    def forest(self) -> Chart | None:
        """The differences with their intervals, a panel per agent; None without any."""
        caption = f"{self.title}: difference in accuracy after training, in points, with 95 % intervals."
        return forest(self.name, caption, self.rows)

    @property
    def has_few_seeds(self) -> bool:
        """Whether a comparison has fewer than ENOUGH_SEEDS seeds."""
        return any(isinstance(d := row.difference, Difference) and d.num_seeds < ENOUGH_SEEDS for row in self.rows)


def comparisons(
    results: Results, paper_values: PaperValues, benchmarks: Sequence[str], against: Sequence[str]
) -> list[ComparisonSection]:
    """The method of interest against all others; or, if the grid names baselines, all others against each of them."""
    sections: list[tuple[str, list[tuple[Variant, Variant]]]] = []
    ours = method_of_interest(results.variants)
    if against:
        for baseline in map(Variant, against):
            pairs_of_section = [(variant, baseline) for variant in results.variants if variant != baseline]
            sections.append((f"The other methods against {baseline.title}", pairs_of_section))
    elif ours is not None:
        pairs_of_section = [(ours, variant) for variant in results.variants if variant != ours]
        sections.append((f"{ours.title} against the other methods", pairs_of_section))
    return [
        ComparisonSection(title, f"verdict_{number}", rows)
        for number, (title, pairs) in enumerate(sections, 1)
        if (rows := _rows(results, paper_values, benchmarks, pairs))
    ]


def _rows(
    results: Results, paper_values: PaperValues, benchmarks: Sequence[str], pairs: Sequence[tuple[Variant, Variant]]
) -> tuple[ComparedRow, ...]:
    rows = [row for ours, theirs in pairs for row in _compare(results, paper_values, benchmarks, ours, theirs)]
    return tuple(holm_corrected([row for row in rows if row.difference != _SAME]))


def _compare(
    results: Results, paper_values: PaperValues, benchmarks: Sequence[str], ours: Variant, theirs: Variant
) -> list[ComparedRow]:
    places = [place for place in results.places if all(results.holds(place, variant) for variant in (ours, theirs))]
    leads = [_paper_lead(paper_values, place, ours, theirs) for place in places]
    rows = [
        ComparedRow(ours, theirs, *place, paired_difference(results, ours, theirs, [place], benchmarks), lead)
        for place, lead in zip(places, leads, strict=True)
    ]
    if places:
        joint = paired_difference(results, ours, theirs, places, benchmarks)
        rows.append(ComparedRow(ours, theirs, EVERY_PAIR, TOGETHER, joint, sum(leads) / len(leads)))
    return rows


def _paper_lead(paper_values: PaperValues, place: _PairAgent, ours: Variant, theirs: Variant) -> float:
    own_value, other_value = (paper_values.get((*place, variant.method, AVERAGE)) for variant in (ours, theirs))
    return (
        math.nan
        if own_value is None or other_value is None or ours.label or theirs.label
        else 100 * (own_value - other_value)
    )
