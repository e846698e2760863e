"""Paired differences between methods: verdicts over all agents, and rows of single agents.

Shapes: A agent, S seed, P problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.report.cells import Results, Variant, method_of_interest, paired_scores
from dashboards.report.published import AVERAGE
from dashboards.report.statistics import ONE_SEED, Difference, holm, p_text, paired_bootstrap, verdict_word
from dashboards.report.tables import DASH, PaperValues, number_text
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.metrics import Floats

ALL = "all agents"
ENOUGH_SEEDS = 5
_SAME = "same experiments"
"""two entries of a grid with equal settings: there is nothing to compare"""
_PairAgent = tuple[str, str]


def paired_difference(
    results: Results, ours: Variant, theirs: Variant, places: Sequence[_PairAgent], benchmarks: Sequence[str]
) -> Difference | str:
    """Ours − theirs over some (pair, agent) places, on the seeds that all of them have for both methods.

    Returns:
        difference in units of accuracy, or the reason why there is none.
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
        difference_ASP[name] = np.stack(scores)
        if np.isnan(difference_ASP[name]).any(axis=(0, 1)).all():
            return "no problem scored in both"
    return paired_bootstrap(difference_ASP)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Difference of two methods for one agent, or over all agents of all pairs (`pair` is then `ALL`)."""

    ours: Variant
    theirs: Variant
    pair: str
    agent: str
    difference: Difference | str
    paper: float
    """the paper's lead, in points; nan if it has none"""
    corrected_p: float = math.nan

    @property
    def title(self) -> str:
        """Both methods."""
        return f"{self.ours.title} − {self.theirs.title}"

    @property
    def word(self) -> str:
        """Win, tie or loss; ONE_SEED with one seed, and "not yet" with none."""
        if isinstance(self.difference, str):
            return "not yet"
        return verdict_word(self.difference.value, self.corrected_p, self.difference.num_seeds)

    @property
    def text(self) -> str:
        """Points, interval and p-value, which are over problems alone with one seed."""
        points, interval, _, p, *_ = self.figures
        over = " over problems" if self.word == ONE_SEED else ""
        return f"{points} points, 95 % interval{over} {interval}, p {p if p.startswith('<') else f'= {p}'}"

    @property
    def sentence(self) -> str:
        """Who is ahead of whom, by how much, and whether that is more than noise; "" without a difference."""
        d = self.difference
        if isinstance(d, str):
            return ""
        points, interval, _, p, *_ = self.figures
        if d.num_seeds < 2 and not d.standard_error > 0:
            basis, noise = "one seed, the same difference on every problem", "how much of it is noise is unknown"
        elif d.num_seeds < 2:
            basis = f"95 % interval over problems {interval}, one seed"
            noise = "no more than noise" if d.low <= 0 <= d.high else "more than the noise of problems, seeds aside"
        else:
            p_value = p if p.startswith("<") else f"= {p}"
            basis = f"95 % interval {interval}, p {p_value} after Holm, {d.num_seeds} seeds"
            noise = "no more than noise" if self.word == "tie" else "more than noise"
        distance = points.lstrip("+-")
        where = "level with" if distance == "0.0" else f"{distance} points {'ahead of' if d.value > 0 else 'behind'}"
        return f"{self.ours.title} is {where} {self.theirs.title} ({basis}): {noise}"

    @property
    def figures(self) -> list[str]:
        """The numbers of a table's row."""
        d = self.difference
        if isinstance(d, str):
            return [f"{DASH} ({d})", *[DASH] * 8]
        return [
            f"{100 * d.value:+.1f}",
            f"{100 * d.low:+.1f} to {100 * d.high:+.1f}",
            p_text(d.p_value).removeprefix("= "),
            p_text(self.corrected_p).removeprefix("= "),
            number_text(100 * d.seed_std, ".1f"),
            number_text(100 * d.power(0.01), ".0f", " %"),
            f"{d.num_seeds}{' (few)' if d.num_seeds < ENOUGH_SEEDS else ''}",
            f"{d.num_problems:,}",
            str(d.num_dropped),
        ]


_COLUMNS = (
    "points", "95 % interval", "p", "p, Holm", "sd of seeds", "power, 1 point", "seeds", "problems", "dropped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """Methods compared with each other, as a part of the report."""

    title: str
    name: str
    rows: tuple[ComparedRow, ...]

    @property
    def headline(self) -> ComparedRow | None:
        """One method against the best of the others; None if several are compared, or nothing yet."""
        joint_rows = [row for row in self.rows if row.pair == ALL and row.word != "not yet"]
        has_one_method = len({row.ours for row in self.rows}) == 1
        return min(joint_rows, key=lambda row: row.difference.value) if joint_rows and has_one_method else None  # type: ignore[union-attr]

    @property
    def verdicts(self) -> pd.DataFrame:
        """A row per comparison over all agents."""
        return pd.DataFrame(
            [
                [row.title, row.word, *row.figures[:2], row.figures[3], row.figures[6]]
                for row in self.rows
                if row.pair == ALL
            ],
            columns=["methods", "verdict", "points", "95 % interval", "p, Holm", "seeds"],
        )

    @property
    def differences(self) -> pd.DataFrame:
        """A row per comparison and agent, and over all agents."""
        return pd.DataFrame(
            [
                [row.title, row.pair, row.agent, *row.figures, number_text(row.paper, "+.1f").replace(DASH, "")]
                for row in self.rows
            ],
            columns=["methods", "pair", "agent", *_COLUMNS, "paper, points"],
        )

    @property
    def forest(self) -> Chart | None:
        """The differences with their intervals, a panel per agent; None without any."""
        has_pairs = len({row.pair for row in self.rows}) > 2
        rows = [
            {
                "agent": f"{row.agent} ({row.pair})" if row.agent and has_pairs else row.agent or ALL,
                "label": row.title,
                "value": 100 * row.difference.value,
                "low": 100 * row.difference.low,
                "high": 100 * row.difference.high,
                "verdict": row.word,
                "note": f"{row.word}: {row.text}",
            }
            for row in sorted(self.rows, key=lambda row: row.pair != ALL)
            if isinstance(row.difference, Difference) and row.word != "not yet"
        ]
        if not rows:
            return None
        caption = f"{self.title}: difference in accuracy after training, in points, with 95 % intervals."
        return charts.forest(self.name, caption, pd.DataFrame(rows), x="difference, points", facet="agent")

    @property
    def has_few_seeds(self) -> bool:
        """Whether a comparison has fewer than ENOUGH_SEEDS seeds."""
        return any(isinstance(d := row.difference, Difference) and d.num_seeds < ENOUGH_SEEDS for row in self.rows)


def comparisons(
    results: Results, paper_values: PaperValues, benchmarks: Sequence[str], against: Sequence[str]
) -> list[Comparison]:
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
        Comparison(title, f"verdict_{number}", rows)
        for number, (title, pairs) in enumerate(sections, 1)
        if (rows := _corrected(results, paper_values, benchmarks, pairs))
    ]


def _corrected(
    results: Results, paper_values: PaperValues, benchmarks: Sequence[str], pairs: Sequence[tuple[Variant, Variant]]
) -> tuple[ComparedRow, ...]:
    """All rows; p-values are corrected by Holm's procedure, separately for single agents and over all agents."""
    all_rows = [row for ours, theirs in pairs for row in _compare(results, paper_values, benchmarks, ours, theirs)]
    rows = [row for row in all_rows if row.difference != _SAME]
    corrected_p: dict[int, float] = {}
    for is_joint in (False, True):
        p_values = {
            number: row.difference.p_value
            for number, row in enumerate(rows)
            if isinstance(row.difference, Difference) and (row.pair == ALL) == is_joint
        }
        corrected_p |= zip(p_values, holm(list(p_values.values())), strict=True)
    return tuple(replace(row, corrected_p=corrected_p.get(number, math.nan)) for number, row in enumerate(rows))


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
        rows.append(ComparedRow(ours, theirs, ALL, "", joint, sum(leads) / len(leads)))
    return rows


def _paper_lead(paper_values: PaperValues, place: _PairAgent, ours: Variant, theirs: Variant) -> float:
    own_value, other_value = (paper_values.get((*place, variant.method, AVERAGE)) for variant in (ours, theirs))
    return (
        math.nan
        if own_value is None or other_value is None or ours.label or theirs.label
        else 100 * (own_value - other_value)
    )
