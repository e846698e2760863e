"""A grid's comparisons so far: its method of interest against each baseline, as in its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboards.report.cells import StatusOf, read_runs
from dashboards.report.comparison import Comparer
from dashboards.report.differences import ComparisonSection, comparisons
from flows.records.gridfile import GridRecord


@dataclass(frozen=True, slots=True)
class GridComparison:
    """A grid's comparers by pair, and its verdicts, without rows if it has fewer than two methods."""

    comparers: Mapping[str, Comparer]
    verdicts: ComparisonSection


class GridComparisons:
    """Comparisons of grids; a grid is compared again only after a new evaluation, not after every training step."""

    def __init__(self, root_of: Callable[[str], Path]) -> None:
        self._root_of = root_of
        self._comparisons: dict[str, tuple[object, GridComparison]] = {}

    def of(self, record: GridRecord, status_of: StatusOf) -> GridComparison:
        """The comparers and the verdicts of a grid."""
        runs = read_runs(record, status_of, self._root_of)
        earlier_runs, comparison = self._comparisons.get(record.name, (None, None))
        if comparison is None or earlier_runs != runs:
            (verdicts,) = comparisons(runs) or [ComparisonSection("", "", ())]
            comparison = GridComparison({pair: Comparer(runs, pair) for pair in runs.pairs}, verdicts)
            self._comparisons[record.name] = runs, comparison
        return comparison
