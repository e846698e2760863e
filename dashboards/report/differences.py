"""Differences between methods, paired by agent, seed and problem: for the page, the report, the commands and MLflow.

Shapes: A agent, S seed, P problem.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from dashboards.charts import charts
from dashboards.charts.charts import Chart
from dashboards.formats import DASH, number_text
from dashboards.report.cells import AgentRun, GridRuns, PairAgent, Variant, method_of_interest
from dashboards.report.compared import EVERY_PAIR, TOGETHER, ComparedRow, holm_corrected
from dashboards.report.published import AVERAGE, PaperValues, paper_values_in
from dashboards.report.statistics import Difference, crossed_difference, p_text
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.metrics import METRICS, Floats
from hacpo_core.evaluation.results import read_result, result_phase
from hacpo_core.evaluation.table import read_responses
from hacpo_core.store.steps import StepStore

_SAME = "same experiments"
"""two entries of a grid with equal settings: there is nothing to compare"""


@lru_cache(10_000)
def problem_scores(root: Path, step: int, benchmark: str, agent: str, _value: float) -> pd.Series:
    """Score of every problem by the benchmark's metric, in its order and by problem id; nan if it is unknown.

    Args:
        root: folder of the experiment.
        step: after which the agent was evaluated.
        benchmark, agent: names.
        _value: the agent's accuracy, which changes if it is evaluated again.

    Raises:
        StoreError: the responses cannot be read.
    """
    headline = read_result(StepStore(root), step, result_phase(benchmark, agent)).headline
    frame = read_responses(
        root, step=step, benchmark=benchmark, agent=agent, columns=["problem_id", "sample", "reward"]
    )
    by_key = frame.pivot(index="problem_id", columns="sample", values="reward")
    by_key = by_key.loc[frame["problem_id"].drop_duplicates()]
    score_P = METRICS[headline.partition("@")[0]](by_key.to_numpy(dtype=np.float64))
    return pd.Series(score_P, index=by_key.index.to_numpy())


def difference(runs: GridRuns, ours: Variant, theirs: Variant, places: Sequence[PairAgent]) -> Difference | str:
    """Ours − theirs over some places, on the seeds that all of them have for both methods.

    Returns:
        difference in points (1/100 of accuracy), or the reason why there is none.
    """
    seeds = runs.common_seeds(ours, theirs, places)
    if not seeds or not runs.record.benchmarks:
        return "no seed of both is complete"
    cells = [(runs.by_seed[*place, ours], runs.by_seed[*place, theirs]) for place in places]
    teams = [(a[seed], b[seed]) for a, b in cells for seed in seeds]
    if all(a.root == b.root for a, b in teams):
        return _SAME
    difference_ASP: dict[str, Floats] = {}
    for name in runs.record.benchmarks:
        if any(name not in run.at(run.last) for team in teams for run in team):
            return f"no evaluation on {name}"
        try:
            scores = [(final_scores(a, name), final_scores(b, name)) for a, b in teams]
        except StoreError as error:
            return f"responses cannot be read: {error}"
        if any(not score.index.equals(scores[0][0].index) for team in scores for score in team):
            return "different problems"
        differences = [a.to_numpy() - b.to_numpy() for a, b in scores]
        difference_ASP[name] = 100 * np.stack(differences).reshape(len(places), len(seeds), -1)
        if np.isnan(difference_ASP[name]).any(axis=(0, 1)).all():
            return "no problem scored in both"
    return crossed_difference(difference_ASP)


def final_scores(run: AgentRun, benchmark: str) -> pd.Series:
    """Score of every problem by problem id after the last step of a complete run; nan if it is unknown.

    Raises:
        StoreError: the responses cannot be read.
    """
    if run.scores is not None:
        return pd.Series(run.scores[benchmark], dtype=float)
    assert run.last is not None, "only complete runs have final scores"
    return problem_scores(run.root, run.last, benchmark, run.agent, run.at(run.last)[benchmark].value)


def _compare(runs: GridRuns, ours: Variant, theirs: Variant) -> Iterator[ComparedRow]:
    """Ours − theirs for each agent, each pair and all pairs."""
    paper_values = paper_values_in(runs.record.table)
    places_of: dict[str, list[PairAgent]] = {}
    for place in runs.places(ours, theirs):
        places_of.setdefault(place[0], []).append(place)
        lead = _paper_lead(paper_values, [place], ours, theirs)
        yield ComparedRow(ours, theirs, *place, difference(runs, ours, theirs, [place]), lead)
    for pair, places in places_of.items():
        lead = _paper_lead(paper_values, places, ours, theirs)
        yield ComparedRow(ours, theirs, pair, TOGETHER, difference(runs, ours, theirs, places), lead)
    if places_of:
        num_seeds = {pair: len(runs.common_seeds(ours, theirs, places)) for pair, places in places_of.items()}
        least = max(1, min(2, max(num_seeds.values())))  # with one pair of several seeds, those of one seed must wait
        long_pairs = [pair for pair, number in num_seeds.items() if number >= least]
        joint = [place for pair in long_pairs for place in places_of[pair]]
        lead = _paper_lead(paper_values, [place for places in places_of.values() for place in places], ours, theirs)
        over_all, num_open = difference(runs, ours, theirs, joint), len(places_of) - len(long_pairs)
        yield ComparedRow(ours, theirs, EVERY_PAIR, TOGETHER, over_all, lead, num_open=num_open)


def _paper_lead(paper_values: PaperValues, places: Sequence[PairAgent], ours: Variant, theirs: Variant) -> float:
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
    """Methods compared with each other; `rows` are of each agent, pair, and all pairs."""

    title: str
    name: str
    rows: tuple[ComparedRow, ...]

    def of(self, pair: str = EVERY_PAIR, agent: str = TOGETHER) -> dict[Variant, ComparedRow]:
        """The rows of one pair and agent, by the other method."""
        return {row.theirs: row for row in self.rows if (row.pair, row.agent) == (pair, agent)}

    @property
    def ours(self) -> Variant | None:
        """The method that is compared with all others; None if there are several, or no rows."""
        methods = {row.ours for row in self.rows}
        return methods.pop() if len(methods) == 1 else None

    @property
    def headline(self) -> ComparedRow | None:
        """One method against the best of the others; None if several are compared, or nothing yet."""
        leads = {row.difference.value: row for row in self.joint_rows if isinstance(row.difference, Difference)}
        return leads[min(leads)] if leads and self.ours is not None else None

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
        """The differences with their intervals, a panel for all agents and one per agent; None without any."""
        shown = [row for row in self.rows if row.pair == EVERY_PAIR or row.agent != TOGETHER]
        has_pairs = len({row.pair for row in shown if row.pair != EVERY_PAIR}) > 1
        values = [
            {
                "agent": f"{row.agent} ({row.pair})" if has_pairs and row.pair != EVERY_PAIR else row.agent,
                "label": row.title,
                "value": d.value,
                "low": d.low,
                "high": d.high,
                "verdict": row.word,
                "p_holm": row.corrected_p,
                "seeds": d.num_seeds,
                "note": row.sentence,
            }
            for row in sorted(shown, key=lambda row: row.agent != TOGETHER)
            if isinstance(d := row.difference, Difference)
        ]
        caption = f"{self.title}: difference in accuracy after training, in points, with 95 % intervals."
        table = pd.DataFrame(values)
        return charts.forest(self.name, caption, table, x="difference, points", facet="agent") if values else None


def comparisons(runs: GridRuns, against: Sequence[str] = ()) -> list[ComparisonSection]:
    """The method of interest against all others; then, if the grid names baselines, all others against each of them."""
    sections: list[tuple[str, list[tuple[Variant, Variant]]]] = []
    variants = runs.variants
    ours = method_of_interest(variants)
    if ours is not None:
        compared = [(ours, variant) for variant in variants if variant != ours]
        sections.append((f"{ours.title} against the other methods", compared))
    for baseline in map(Variant, against):
        compared = [(variant, baseline) for variant in variants if variant != baseline]
        if not sections or not set(compared) <= set(sections[0][1]):  # else it would say the same again
            sections.append((f"The other methods against {baseline.title}", compared))
    made = []
    for number, (title, compared) in enumerate(sections, 1):
        rows = [row for a, b in compared for row in _compare(runs, a, b) if row.difference != _SAME]
        if rows:
            made.append(ComparisonSection(title, f"verdict_{number}", tuple(holm_corrected(rows))))
    return made
