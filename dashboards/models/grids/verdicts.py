"""A grid's verdicts so far: its method of interest against each baseline, paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.models.grids.cells import StatusOf
from dashboards.models.grids.comparison import Comparer
from dashboards.report.cells import Variant, method_of_interest
from dashboards.report.compared import EVERY_PAIR, TOGETHER, ComparedRow, holm_corrected
from dashboards.report.statistics import Difference, of_one_seed, paired_t
from flows.records.gridfile import GridRecord

_TWICE_THE_TOKENS = "gspo_x2"


@dataclass(frozen=True, slots=True)
class GridVerdicts:
    """The verdicts of a grid; `ours` is None if the grid has fewer than two methods."""

    ours: Variant | None
    baselines: tuple[Variant, ...] = ()
    rows: tuple[ComparedRow, ...] = ()
    """of each pair, agent and baseline"""
    best_baseline: Variant | None = None
    """the other method against which ours has the smallest lead, on common pairs and seeds"""

    def of(self, pair: str = EVERY_PAIR, agent: str = TOGETHER) -> dict[Variant, ComparedRow]:
        """Verdicts of one pair and agent, by baseline."""
        return {v.theirs: v for v in self.rows if (v.pair, v.agent) == (pair, agent)}

    @property
    def headlines(self) -> list[tuple[str, Variant, ComparedRow | None]]:
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


class GridComparisons:
    """Comparisons of grids; a grid is compared again only after a new evaluation, not after every training step."""

    def __init__(self) -> None:
        self._comparisons: dict[str, tuple[object, GridComparison]] = {}

    def of(self, record: GridRecord, status_of: StatusOf) -> GridComparison:
        """The comparers and the verdicts of a grid."""
        statuses = [status_of(cell.experiment) for cell in record.cells]
        basis = record, [(status.state, status.progress and status.progress.evaluations) for status in statuses]
        earlier_basis, comparison = self._comparisons.get(record.name, (None, None))
        if comparison is None or earlier_basis != basis:
            pairs = dict.fromkeys(cell.pair for cell in record.cells)
            comparers = {pair: Comparer(record, pair, status_of) for pair in pairs}
            comparison = GridComparison(comparers, verdicts_of(comparers))
            self._comparisons[record.name] = basis, comparison
        return comparison


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
    rows = [
        ComparedRow(
            ours,
            theirs,
            pair,
            agent,
            leads[pair, agent, theirs].difference,
            num_open=num_open[theirs] if pair == EVERY_PAIR else 0,
        )
        for kind in [*kinds, [(EVERY_PAIR, TOGETHER)]]
        for pair, agent in kind
        for theirs in baselines
        if leads[pair, agent, theirs]
    ]
    overall = {
        row.theirs: row.difference.value
        for row in rows
        if row.pair == EVERY_PAIR and isinstance(row.difference, Difference)
    }
    best = min(overall, key=lambda variant: overall[variant], default=None)  # leaves us the smallest lead
    return GridVerdicts(ours, tuple(baselines), tuple(holm_corrected(rows)), best)


def _lead(comparer: Comparer, agent: str, ours: Variant, theirs: Variant) -> _Lead:
    agents = comparer.agents if agent == TOGETHER else (agent,)
    a, b = (comparer.finals(variant, agents) for variant in (ours, theirs))
    of_a, of_b = (comparer.final_variances(variant, agents) for variant in (ours, theirs))
    seeds = sorted(a.keys() & b.keys())
    return _Lead(
        {seed: 100 * (a[seed] - b[seed]) for seed in seeds},
        {seed: 100**2 * (of_a[seed] + of_b[seed]) for seed in seeds},
    )
