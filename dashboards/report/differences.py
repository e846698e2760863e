"""Differences between methods, paired by agent, seed and problem: for the page, the report, the commands and MLflow.

Shapes: A agent, S seed, P problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dashboards.charts.charts import Chart
from dashboards.report.cells import Variant, method_of_interest, variant_of
from dashboards.report.compared import EVERY_PAIR, TOGETHER, ComparedRow, forest, holm_corrected
from dashboards.report.comparison import AgentEvaluations, StatusOf
from dashboards.report.published import AVERAGE, PaperValues
from dashboards.report.statistics import Difference, crossed_difference, p_text
from dashboards.report.tables import DASH, number_text
from flows.records.gridfile import GridRecord
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.metrics import METRICS, Floats
from hacpo_core.evaluation.results import read_result, result_phase
from hacpo_core.evaluation.table import read_responses
from hacpo_core.store.steps import StepStore

_SAME = "same experiments"
"""two entries of a grid with equal settings: there is nothing to compare"""
_PairAgent = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Final:
    """An agent's evaluations after a complete training; `values` are its accuracies by benchmark."""

    root: Path
    agent: str
    step: int
    values: Mapping[str, float]


class ScoreReader:
    """Scores of every problem after trainings; each evaluation is read once."""

    def __init__(self) -> None:
        self._scores: dict[tuple[object, ...], pd.Series] = {}

    def scores(self, final: Final, benchmark: str) -> pd.Series:
        """Score of every problem by the benchmark's metric, in its order and by problem id; nan if it is unknown.

        Raises:
            StoreError: the responses cannot be read.
        """
        key = (final.root, final.agent, final.step, benchmark, final.values[benchmark])
        if key not in self._scores:
            store, phase = StepStore(final.root), result_phase(benchmark, final.agent)
            headline = read_result(store, final.step, phase).headline
            frame = read_responses(
                final.root, step=final.step, benchmark=benchmark, agent=final.agent,
                columns=["problem_id", "sample", "reward"],
            )  # fmt: skip
            by_key = frame.pivot(index="problem_id", columns="sample", values="reward")
            by_key = by_key.loc[frame["problem_id"].drop_duplicates()]
            score_P = METRICS[headline.partition("@")[0]](by_key.to_numpy(dtype=np.float64))
            self._scores[key] = pd.Series(score_P, index=by_key.index.to_numpy())
        return self._scores[key]


@dataclass(frozen=True, slots=True)
class Finals:
    """All methods of a grid after training: for every planned pair, agent and method, its complete seeds."""

    by_seed: Mapping[tuple[str, str, Variant], Mapping[int, Final]]
    benchmarks: Sequence[str]
    """to average"""
    reader: ScoreReader

    @property
    def variants(self) -> list[Variant]:
        """All methods, in grid order."""
        return list(dict.fromkeys(variant for *_, variant in self.by_seed))

    def places(self, *variants: Variant) -> list[_PairAgent]:
        """Every pair and agent for which all of these methods are planned, in grid order."""
        places = dict.fromkeys((pair, agent) for pair, agent, _ in self.by_seed)
        return [place for place in places if all((*place, variant) in self.by_seed for variant in variants)]

    def common_seeds(self, ours: Variant, theirs: Variant, places: Sequence[_PairAgent]) -> list[int]:
        """Seeds that are complete for both methods in all of these places."""
        seeds = [set(self.by_seed[*place, variant]) for place in places for variant in (ours, theirs)]
        return sorted(set.intersection(*seeds)) if seeds else []

    def difference(self, ours: Variant, theirs: Variant, places: Sequence[_PairAgent]) -> Difference | str:
        """Ours − theirs over some places, on the seeds that all of them have for both methods.

        Returns:
            difference in points (1/100 of accuracy), or the reason why there is none.
        """
        seeds = self.common_seeds(ours, theirs, places)
        if not seeds or not self.benchmarks:
            return "no seed of both is complete"
        teams = [[(self.by_seed[*place, ours][s], self.by_seed[*place, theirs][s]) for s in seeds] for place in places]
        if all(a.root == b.root for team in teams for a, b in team):
            return _SAME
        difference_ASP: dict[str, Floats] = {}
        for name in self.benchmarks:
            if any(name not in final.values for team in teams for pair in team for final in pair):
                return f"no evaluation on {name}"
            try:
                scores = [(self.reader.scores(a, name), self.reader.scores(b, name)) for team in teams for a, b in team]
            except StoreError as error:
                return f"responses cannot be read: {error}"
            if any(not score.index.equals(scores[0][0].index) for pair in scores for score in pair):
                return "different problems"
            differences = [a.to_numpy() - b.to_numpy() for a, b in scores]
            difference_ASP[name] = 100 * np.stack(differences).reshape(len(places), len(seeds), -1)
            if np.isnan(difference_ASP[name]).any(axis=(0, 1)).all():
                return "no problem scored in both"
        return crossed_difference(difference_ASP)


def finals_of(record: GridRecord, status_of: StatusOf, root_of: Callable[[str], Path], reader: ScoreReader) -> Finals:
    """The cells of a grid after training."""
    by_seed: dict[tuple[str, str, Variant], dict[int, Final]] = {}
    for cell in record.cells:
        finals = by_seed.setdefault((cell.pair, cell.agent, variant_of(cell)), {})
        run = AgentEvaluations.of(cell, status_of(cell.experiment))
        if run.last is not None:
            values = {name: evaluation.value for name, evaluation in run.at(run.last).items()}
            finals[cell.seed] = Final(root_of(cell.experiment), cell.agent, run.last, values)
    return Finals(by_seed, record.benchmarks, reader)


def compared_rows(
    finals: Finals, variants: Sequence[tuple[Variant, Variant]], paper_values: PaperValues
) -> tuple[ComparedRow, ...]:
    """Ours − theirs of these methods for each agent, each pair and all pairs, corrected by Holm."""
    rows = [row for ours, theirs in variants for row in _compare(finals, paper_values, ours, theirs)]
    return tuple(holm_corrected([row for row in rows if row.difference != _SAME]))


def _compare(finals: Finals, paper_values: PaperValues, ours: Variant, theirs: Variant) -> Iterator[ComparedRow]:
    places_of: dict[str, list[_PairAgent]] = {}
    for place in finals.places(ours, theirs):
        places_of.setdefault(place[0], []).append(place)
        lead = _paper_lead(paper_values, [place], ours, theirs)
        yield ComparedRow(ours, theirs, *place, finals.difference(ours, theirs, [place]), lead)
    for pair, places in places_of.items():
        lead = _paper_lead(paper_values, places, ours, theirs)
        yield ComparedRow(ours, theirs, pair, TOGETHER, finals.difference(ours, theirs, places), lead)
    if places_of:
        num_seeds = {pair: len(finals.common_seeds(ours, theirs, places)) for pair, places in places_of.items()}
        least = max(1, min(2, max(num_seeds.values())))  # with one pair of several seeds, those of one seed must wait
        long_pairs = [pair for pair, number in num_seeds.items() if number >= least]
        joint = [place for pair in long_pairs for place in places_of[pair]]
        lead = _paper_lead(paper_values, [place for places in places_of.values() for place in places], ours, theirs)
        difference, num_open = finals.difference(ours, theirs, joint), len(places_of) - len(long_pairs)
        yield ComparedRow(ours, theirs, EVERY_PAIR, TOGETHER, difference, lead, num_open=num_open)


def _paper_lead(paper_values: PaperValues, places: Sequence[_PairAgent], ours: Variant, theirs: Variant) -> float:
    """The paper's mean lead over these places, in points; nan if it has none."""
    if ours.label or theirs.label:
        return math.nan
    values = [[paper_values.get((*place, v.method, AVERAGE), math.nan) for v in (ours, theirs)] for place in places]
    return 100 * sum(a - b for a, b in values) / len(values)


def _figures(row: ComparedRow) -> list[str]:
    """The numbers of a table's row."""
    d = row.difference
    if isinstance(d, str):
        return [f"{DASH} ({d})", *[DASH] * 6]
    return [
        f"{d.value:+.1f}",
        f"{d.low:+.1f} to {d.high:+.1f}",
        p_text(d.p_value).removeprefix("= "),
        p_text(row.corrected_p).removeprefix("= "),
        str(d.num_seeds),
        f"{d.num_problems:,}",
        str(d.num_dropped),
    ]


_COLUMNS = ("points", "95 % interval", "p", "p, Holm", "seeds", "problems", "dropped")


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
        """The rows over all agents of all pairs."""
        return [row for row in self.rows if row.pair == EVERY_PAIR]

    @property
    def verdicts(self) -> pd.DataFrame:
        """A line per comparison over all agents."""
        columns = ["methods", "verdict", "points", "95 % interval", "p, Holm", "seeds"]
        lines = [[row.title, row.word, *np.array(_figures(row))[[0, 1, 3, 4]]] for row in self.joint_rows]
        return pd.DataFrame(lines, columns=columns)

    @property
    def differences(self) -> pd.DataFrame:
        """A line per comparison and agent, pair if there are several, and over all agents."""
        has_pairs = len({row.pair for row in self.rows}) > 2
        lines = [
            [row.title, row.pair, row.agent, *_figures(row), number_text(row.paper, "+.1f").replace(DASH, "")]
            for row in self.rows
            if has_pairs or row.pair == EVERY_PAIR or row.agent != TOGETHER
        ]
        return pd.DataFrame(lines, columns=["methods", "pair", "agent", *_COLUMNS, "paper, points"])

    @property
    def forest(self) -> Chart | None:
        """The differences with their intervals, a panel per agent; None without any."""
        caption = f"{self.title}: difference in accuracy after training, in points, with 95 % intervals."
        return forest(self.name, caption, [r for r in self.rows if r.pair == EVERY_PAIR or r.agent != TOGETHER])


def comparisons(finals: Finals, paper_values: PaperValues, against: Sequence[str]) -> list[ComparisonSection]:
    """The method of interest against all others; or, if the grid names baselines, all others against each of them."""
    sections: list[tuple[str, list[tuple[Variant, Variant]]]] = []
    variants = finals.variants
    ours = method_of_interest(variants)
    if against:
        for baseline in map(Variant, against):
            compared = [(variant, baseline) for variant in variants if variant != baseline]
            sections.append((f"The other methods against {baseline.title}", compared))
    elif ours is not None:
        compared = [(ours, variant) for variant in variants if variant != ours]
        sections.append((f"{ours.title} against the other methods", compared))
    return [
        ComparisonSection(title, f"verdict_{number}", rows)
        for number, (title, compared) in enumerate(sections, 1)
        if (rows := compared_rows(finals, compared, paper_values))
    ]
