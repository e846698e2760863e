"""A grid's verdicts so far: its method of interest against each baseline, as in its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboards.report.cells import Variant, method_of_interest
from dashboards.report.compared import EVERY_PAIR, TOGETHER, ComparedRow
from dashboards.report.comparison import Comparer, StatusOf
from dashboards.report.differences import ScoreReader, compared_rows, finals_of
from dashboards.report.published import paper_values_in
from dashboards.report.statistics import Difference
from flows.records.gridfile import GridRecord

_TWICE_THE_TOKENS = "gspo_x2"


@dataclass(frozen=True, slots=True)
class GridVerdicts:
    """The verdicts of a grid; `ours` is None if the grid has fewer than two methods."""

    ours: Variant | None
    baselines: tuple[Variant, ...] = ()
    rows: tuple[ComparedRow, ...] = ()
    """of each agent, pair, and all pairs, by baseline"""

    def of(self, pair: str = EVERY_PAIR, agent: str = TOGETHER) -> dict[Variant, ComparedRow]:
        """Verdicts of one pair and agent, by baseline."""
        return {row.theirs: row for row in self.rows if (row.pair, row.agent) == (pair, agent)}

    @property
    def headlines(self) -> list[tuple[str, ComparedRow]]:
        """The verdicts against the best baseline, which leaves ours the smallest lead, and with twice the tokens."""
        overall = self.of()
        leads = {v: d.value for v, row in overall.items() if isinstance(d := row.difference, Difference)}
        best = min(leads, key=lambda variant: leads[variant], default=None)
        double = next((variant for variant in overall if variant.method == _TWICE_THE_TOKENS), None)
        if double is not None and double == best:
            return [("the best baseline, with twice the tokens", overall[double])]
        baselines = [("the best baseline", best), ("with twice the tokens", double)]
        return [(what, overall[variant]) for what, variant in baselines if variant is not None]


@dataclass(frozen=True, slots=True)
class GridComparison:
    """A grid's comparers by pair, and its verdicts."""

    comparers: Mapping[str, Comparer]
    verdicts: GridVerdicts


class GridComparisons:
    """Comparisons of grids; a grid is compared again only after a new evaluation, not after every training step."""

    def __init__(self, root_of: Callable[[str], Path]) -> None:
        self._root_of, self._reader = root_of, ScoreReader()
        self._comparisons: dict[str, tuple[object, GridComparison]] = {}

    def of(self, record: GridRecord, status_of: StatusOf) -> GridComparison:
        """The comparers and the verdicts of a grid."""
        statuses = [status_of(cell.experiment) for cell in record.cells]
        basis = record, [(status.state, status.progress and status.progress.evaluations) for status in statuses]
        earlier_basis, comparison = self._comparisons.get(record.name, (None, None))
        if comparison is None or earlier_basis != basis:
            pairs = dict.fromkeys(cell.pair for cell in record.cells)
            comparers = {pair: Comparer(record, pair, status_of) for pair in pairs}
            comparison = GridComparison(comparers, self._verdicts(record, status_of))
            self._comparisons[record.name] = basis, comparison
        return comparison

    def _verdicts(self, record: GridRecord, status_of: StatusOf) -> GridVerdicts:
        all_finals = finals_of(record, status_of, self._root_of, self._reader)
        ours = method_of_interest(all_finals.variants)
        if ours is None or not record.benchmarks:
            return GridVerdicts(ours)
        baselines = tuple(variant for variant in all_finals.variants if variant != ours)
        pairs = [(ours, variant) for variant in baselines]
        return GridVerdicts(ours, baselines, compared_rows(all_finals, pairs, paper_values_in(record.table)))
