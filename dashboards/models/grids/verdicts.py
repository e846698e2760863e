"""A grid's verdicts so far: its method of interest against each baseline, paired by seed."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.formats import counted, signed
from dashboards.models.grids.cells import StatusOf
from dashboards.models.grids.comparison import TOGETHER, Comparer
from dashboards.report.cells import Variant, method_of_interest
from dashboards.report.statistics import Difference, holm, of_one_seed, p_text, paired_t, verdict_word
from flows.records.gridfile import GridRecord
from flows.records.states import ExperimentStatus

EVERY_PAIR = ""
"""stands for all pairs of a grid together"""
_TWICE_THE_TOKENS = "gspo_x2"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Difference of two methods in points (1/100), for a pair (or EVERY_PAIR) and an agent (or TOGETHER).

    `corrected_p` is corrected by Holm over the verdicts of the same kind: single agents, pairs, or all pairs. With one
    seed it is nan, and the interval is over problems, as if the methods' scores were independent.
    """

    pair: str
    agent: str
    ours: Variant
    theirs: Variant
    difference: Difference
    corrected_p: float
    num_open: int = 0
    """pairs that have too few seeds yet, of a verdict over all pairs"""

    @property
    def word(self) -> str:
        """Whether it is a win or a loss (the corrected p-value is below 0.05), or a tie; with one seed, that."""
        return verdict_word(self.difference.value, self.corrected_p, self.difference.num_seeds)

    @property
    def has_interval(self) -> bool:
        """Whether the interval is known; with one seed, files of earlier versions lack it."""
        return self.difference.num_seeds > 1 or math.isfinite(self.difference.standard_error)

    @property
    def text(self) -> str:
        """Points, interval and p-value."""
        d = self.difference
        bounds = f"{signed(d.low)} to {signed(d.high)}"
        if not self.has_interval:
            interval = "interval unknown"
        elif d.num_seeds == 1:
            interval = f"95 % interval over problems {bounds}"
        else:
            interval = f"95 % interval {bounds}, p {p_text(self.corrected_p)}"
        return f"{signed(d.value)} points, {interval}, {counted(d.num_seeds, 'seed')}{self.so_far}"

    @property
    def so_far(self) -> str:
        """What a verdict over all pairs lacks; "" if it lacks none."""
        return f", {counted(self.num_open, 'pair')} to come" if self.num_open else ""


@dataclass(frozen=True, slots=True)
class GridVerdicts:
    """The verdicts of a grid; `ours` is None if the grid has fewer than two methods."""

    ours: Variant | None
    baselines: tuple[Variant, ...] = ()
    rows: tuple[Verdict, ...] = ()
    """of each pair, agent and baseline"""
    best_baseline: Variant | None = None
    """the other method against which ours has the smallest lead, on common pairs and seeds"""

    def of(self, pair: str = EVERY_PAIR, agent: str = TOGETHER) -> dict[Variant, Verdict]:
        """Verdicts of one pair and agent, by baseline."""
        return {v.theirs: v for v in self.rows if (v.pair, v.agent) == (pair, agent)}

    @property
    def headlines(self) -> list[tuple[str, Variant, Verdict | None]]:
        """What is compared, the baseline, and the verdict (None: not yet): best baseline, and twice the tokens."""
        if self.ours is None:
            return []
        overall = self.of()
        double = next((variant for variant in self.baselines if variant.method == _TWICE_THE_TOKENS), None)
        if double is not None and double == self.best_baseline:
            return [("the best baseline, with twice the tokens", double, overall.get(double))]
        baselines = [("the best baseline", self.best_baseline), ("with twice the tokens", double)]
        return [(what, variant, overall.get(variant)) for what, variant in baselines if variant is not None]


@dataclass(frozen=True, slots=True)
class GridComparison:
    """A grid's comparers by pair, and its verdicts."""

    comparers: Mapping[str, Comparer]
    verdicts: GridVerdicts


@dataclass(frozen=True, slots=True)
class _Pair:
    statuses: Sequence[ExperimentStatus]
    comparer: Comparer


class GridComparisons:
    """Comparisons of grids; a pair is compared again only after a new evaluation, not after every training step."""

    def __init__(self) -> None:
        self._comparisons: dict[str, tuple[GridRecord, Mapping[str, _Pair], GridComparison]] = {}

    def of(self, record: GridRecord, status_of: StatusOf) -> GridComparison:
        """The comparers and the verdicts of a grid."""
        earlier = self._comparisons.get(record.name)
        earlier_pairs: Mapping[str, _Pair] = earlier[1] if earlier is not None and earlier[0] == record else {}
        statuses: dict[str, list[ExperimentStatus]] = {}
        for cell in record.cells:
            statuses.setdefault(cell.pair, []).append(status_of(cell.experiment))
        pairs = {
            pair: _compare_pair(record, pair, pair_statuses, status_of, earlier_pairs.get(pair))
            for pair, pair_statuses in statuses.items()
        }
        comparers = {pair: compared_pair.comparer for pair, compared_pair in pairs.items()}
        if (
            earlier is not None
            and earlier_pairs
            and all(comparers[pair] is compared_pair.comparer for pair, compared_pair in earlier_pairs.items())
        ):
            comparison = earlier[2]
        else:
            comparison = GridComparison(comparers, verdicts_of(comparers))
        self._comparisons[record.name] = record, pairs, comparison
        return comparison


def _compare_pair(
    record: GridRecord,
    pair: str,
    statuses: Sequence[ExperimentStatus],
    status_of: StatusOf,
    earlier: _Pair | None,
) -> _Pair:
    if earlier is None:
        return _Pair(statuses, Comparer(record, pair, status_of))
    if all(map(operator.is_, statuses, earlier.statuses)):
        return earlier
    comparer = Comparer(record, pair, status_of)
    return _Pair(statuses, earlier.comparer if comparer.evaluations == earlier.comparer.evaluations else comparer)


@dataclass(frozen=True, slots=True)
class _Lead:
    """Points by which a method leads another, and their squared standard error over problems, by common seed."""

    points: Mapping[int, float]
    variances: Mapping[int, float]

    def __len__(self) -> int:
        return len(self.points)

    @classmethod
    def mean(cls, leads: Sequence[_Lead]) -> _Lead:
        """Mean over pairs, on their common seeds."""
        seeds = sorted(set.intersection(*(set(lead.points) for lead in leads))) if leads else []
        return cls(
            {seed: statistics.fmean(lead.points[seed] for lead in leads) for seed in seeds},
            {seed: sum(lead.variances[seed] for lead in leads) / len(leads) ** 2 for seed in seeds},
        )

    @property
    def difference(self) -> Difference:
        """Over at least one seed."""
        if len(self) > 1:
            return paired_t(list(self.points.values()))
        (seed,) = self.points
        return of_one_seed(self.points[seed], math.sqrt(self.variances[seed]))


def verdicts_of(comparers: Mapping[str, Comparer]) -> GridVerdicts:
    """The verdicts of a grid; without a common complete seed there is none.

    Args:
        comparers: of the grid's pairs.
    """
    variants = list(dict.fromkeys(variant for comparer in comparers.values() for variant in comparer.variants))
    ours = method_of_interest(variants)
    if ours is None:
        return GridVerdicts(None)
    baselines = [variant for variant in variants if variant != ours]
    places = [(pair, agent) for pair, comparer in comparers.items() for agent in comparer.agents]
    kinds: list[list[tuple[str, str]]] = [places, [(pair, TOGETHER) for pair in comparers]]
    leads = {
        (pair, agent, theirs): _lead(comparers[pair], agent, ours, theirs)
        for kind in kinds
        for pair, agent in kind
        for theirs in baselines
    }
    num_open: dict[Variant, int] = {}
    for theirs in baselines:
        planned_pairs = [pair for pair, comparer in comparers.items() if {ours, theirs} <= set(comparer.variants)]
        pair_leads = [leads[pair, TOGETHER, theirs] for pair in planned_pairs]
        # With one pair of several seeds, those of one seed must wait.
        num_seeds = min(2, max(map(len, pair_leads), default=0))
        long_leads = [lead for lead in pair_leads if len(lead) >= max(1, num_seeds)]
        leads[EVERY_PAIR, TOGETHER, theirs] = _Lead.mean(long_leads)
        num_open[theirs] = len(pair_leads) - len(long_leads)
    verdicts: list[Verdict] = []
    for kind in [*kinds, [(EVERY_PAIR, TOGETHER)]]:
        differences = [
            (pair, agent, theirs, leads[pair, agent, theirs].difference)
            for pair, agent in kind
            for theirs in baselines
            if leads[pair, agent, theirs]
        ]
        p_values = {n: difference.p_value for n, (*_, difference) in enumerate(differences) if difference.num_seeds > 1}
        corrected_p = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        verdicts += [
            Verdict(
                pair,
                agent,
                ours,
                theirs,
                difference,
                corrected_p.get(n, math.nan),
                num_open[theirs] if pair == EVERY_PAIR else 0,
            )
            for n, (pair, agent, theirs, difference) in enumerate(differences)
        ]
    overall = {v.theirs: v.difference.value for v in verdicts if v.pair == EVERY_PAIR}
    best = min(overall, key=lambda variant: overall[variant], default=None)  # leaves us the smallest lead
    return GridVerdicts(ours, tuple(baselines), tuple(verdicts), best)


def _lead(comparer: Comparer, agent: str, ours: Variant, theirs: Variant) -> _Lead:
    agents = comparer.agents if agent == TOGETHER else (agent,)
    a, b = (comparer.finals(variant, agents) for variant in (ours, theirs))
    of_a, of_b = (comparer.final_variances(variant, agents) for variant in (ours, theirs))
    seeds = sorted(a.keys() & b.keys())
    return _Lead(
        {seed: 100 * (a[seed] - b[seed]) for seed in seeds},
        {seed: 100**2 * (of_a[seed] + of_b[seed]) for seed in seeds},
    )
