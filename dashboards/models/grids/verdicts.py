"""A grid's answer so far: its method of interest against each baseline, paired by seed."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.formats import signed
from dashboards.models.grids.cells import StandingOf
from dashboards.models.grids.comparison import TOGETHER, Comparer
from experiments.report.cells import Variant, method_of_interest
from experiments.report.statistics import Difference, holm, p_text, paired_t, verdict_word
from flows.records.gridfile import GridRecord
from flows.records.states import Standing

EVERY_PAIR = ""
"""stands for all pairs of a grid together"""
_TWICE_THE_TOKENS = "gspo_x2"
LEAST_SEEDS = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Difference of two methods in points (1/100), for a pair (or EVERY_PAIR) and an agent (or TOGETHER).

    `corrected_p` is corrected by Holm over the verdicts of the same kind: single agents, pairs, or all pairs.
    """

    pair: str
    agent: str
    ours: Variant
    theirs: Variant
    difference: Difference
    corrected_p: float

    @property
    def word(self) -> str:
        """Whether it is a win or a loss (the corrected p-value is below 0.05), or a tie."""
        return verdict_word(self.difference.value, self.corrected_p)

    @property
    def text(self) -> str:
        """Points, interval and p-value."""
        d = self.difference
        interval = f"95 % interval {signed(d.low)} to {signed(d.high)}"
        return f"{signed(d.value)} points, {interval}, p {p_text(self.corrected_p)}, {d.num_seeds} seeds"


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdicts of a grid; `ours` is None if the grid has fewer than two methods."""

    ours: Variant | None
    baselines: tuple[Variant, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    best: Variant | None = None
    """the other method against which ours has the smallest lead, on common pairs and seeds"""

    def of(self, pair: str = EVERY_PAIR, agent: str = TOGETHER) -> dict[Variant, Verdict]:
        """Verdicts of one pair and agent, by baseline."""
        return {v.theirs: v for v in self.verdicts if (v.pair, v.agent) == (pair, agent)}

    @property
    def headlines(self) -> list[tuple[str, Variant, Verdict | None]]:
        """What is compared, the baseline, and the verdict (None: not yet): best baseline, and twice the tokens."""
        if self.ours is None:
            return []
        overall = self.of()
        double = next((variant for variant in self.baselines if variant.method == _TWICE_THE_TOKENS), None)
        if double is not None and double == self.best:
            return [("the best baseline, with twice the tokens", double, overall.get(double))]
        shown = [("the best baseline", self.best), ("with twice the tokens", double)]
        return [(what, variant, overall.get(variant)) for what, variant in shown if variant is not None]


@dataclass(frozen=True, slots=True)
class Judged:
    """A grid's comparers by pair, and its answer."""

    comparers: Mapping[str, Comparer]
    answer: Answer


@dataclass(frozen=True, slots=True)
class _Pair:
    standings: Sequence[Standing]
    comparer: Comparer


class Judge:
    """Judges grids; a pair is compared again only if its evaluations have changed, which no step alone does."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[GridRecord, Mapping[str, _Pair], Judged]] = {}

    def judged(self, record: GridRecord, standing_of: StandingOf) -> Judged:
        """The comparers and the answer of a grid."""
        known = self._known.get(record.name)
        before: Mapping[str, _Pair] = known[1] if known is not None and known[0] == record else {}
        standings: dict[str, list[Standing]] = {}
        for place in record.places:
            standings.setdefault(place.pair, []).append(standing_of(place.experiment))
        pairs = {pair: _compared(record, pair, own, standing_of, before.get(pair)) for pair, own in standings.items()}
        comparers = {pair: own.comparer for pair, own in pairs.items()}
        if known is not None and before and all(comparers[pair] is own.comparer for pair, own in before.items()):
            found = known[2]
        else:
            found = Judged(comparers, answer_of(comparers))
        self._known[record.name] = record, pairs, found
        return found


def _compared(
    record: GridRecord, pair: str, standings: Sequence[Standing], standing_of: StandingOf, before: _Pair | None
) -> _Pair:
    if before is None:
        return _Pair(standings, Comparer(record, pair, standing_of))
    if all(map(operator.is_, standings, before.standings)):
        return before
    comparer = Comparer(record, pair, standing_of)
    return _Pair(standings, before.comparer if comparer.trained == before.comparer.trained else comparer)


def answer_of(comparers: Mapping[str, Comparer]) -> Answer:
    """The verdicts of a grid; places with fewer than LEAST_SEEDS common complete seeds have none.

    Args:
        comparers: of the grid's pairs.
    """
    variants = list(dict.fromkeys(variant for comparer in comparers.values() for variant in comparer.variants))
    ours = method_of_interest(variants)
    if ours is None:
        return Answer(None)
    baselines = [variant for variant in variants if variant != ours]
    places = [(pair, agent) for pair, comparer in comparers.items() for agent in comparer.agents]
    kinds: list[list[tuple[str, str]]] = [places, [(pair, TOGETHER) for pair in comparers], [(EVERY_PAIR, TOGETHER)]]
    verdicts: list[Verdict] = []
    for kind in kinds:
        found = [
            (*place, theirs, paired_t([100 * (a[seed] - b[seed]) for seed in sorted(a.keys() & b.keys())]))
            for place in kind
            for theirs in baselines
            for a, b in [_both(comparers, *place, ours, theirs)]
            if len(a.keys() & b.keys()) >= LEAST_SEEDS
        ]
        corrected = holm([difference.p_value for *_, difference in found])
        verdicts += [
            Verdict(pair, agent, ours, theirs, difference, p)
            for (pair, agent, theirs, difference), p in zip(found, corrected, strict=True)
        ]
    overall = {v.theirs: v.difference.value for v in verdicts if v.pair == EVERY_PAIR}
    best = min(overall, key=lambda variant: overall[variant], default=None)  # leaves us the smallest lead
    return Answer(ours, tuple(baselines), tuple(verdicts), best)


def _both(
    comparers: Mapping[str, Comparer], pair: str, agent: str, ours: Variant, theirs: Variant
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Accuracies after training of two methods, by seed; over all pairs: means over the pairs that have both."""
    chosen = comparers.values() if pair == EVERY_PAIR else [comparers[pair]]
    chosen = [comparer for comparer in chosen if {ours, theirs} <= set(comparer.variants)]
    return _values(chosen, agent, ours), _values(chosen, agent, theirs)


def _values(comparers: Sequence[Comparer], agent: str, variant: Variant) -> dict[int, float]:
    """Mean over pairs, by the seeds that all of them have."""
    values = [comparer.finals(variant, comparer.agents if agent == TOGETHER else (agent,)) for comparer in comparers]
    seeds = set.intersection(*(set(own) for own in values)) if values else set()
    return {seed: statistics.fmean(own[seed] for own in values) for seed in seeds}
