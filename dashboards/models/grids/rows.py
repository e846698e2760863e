"""What stands beside a row of a matrix: mean over seeds with its interval, and the difference from a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dashboards.models.grids.comparison import Comparer
from dashboards.models.grids.matrix import Matrix, MatrixRow
from dashboards.report.cells import Variant
from dashboards.report.statistics import Difference, Summary, paired_t, summarize
from flows.records.progress import Spent


@dataclass(frozen=True, slots=True)
class RowSummary:
    """Accuracy after training over the row's complete seeds, its difference from the baseline, and its tokens.

    `low` and `high` are the ends of the pair's axis, the same for all of its rows.
    """

    accuracy: Summary | None
    difference: Difference | None
    tokens: int
    low: float
    high: float

    def place(self, value: float) -> float:
        """Position of an accuracy on the axis, in [0, 100]."""
        return 100 * min(max((value - self.low) / ((self.high - self.low) or 1.0), 0.0), 1.0)


def summaries(matrix: Matrix, comparers: Mapping[str, Comparer], baseline: Variant | None) -> Mapping[str, RowSummary]:
    """Summary of every row by its key."""
    row_summaries: dict[str, RowSummary] = {}
    for section in matrix.sections:
        comparer = comparers[section.pair]
        finals = {row.key: _finals(comparer, row, row.variant) for row in section.rows}
        accuracy_summaries = {key: summarize(list(values.values())) for key, values in finals.items() if values}
        ends = [value for values in finals.values() for value in values.values()]
        low, high = min(ends, default=0.0), max(ends, default=1.0)
        for row in section.rows:
            theirs = _finals(comparer, row, baseline) if baseline is not None else {}
            common = sorted(finals[row.key].keys() & theirs.keys())
            is_other = row.variant != baseline
            row_summaries[row.key] = RowSummary(
                accuracy_summaries.get(row.key),
                paired_t([100 * (finals[row.key][seed] - theirs[seed]) for seed in common])
                if len(common) > 1 and is_other
                else None,
                Spent.sum(cell.spent for cell in row.cells if cell is not None).tokens,
                low,
                high,
            )
    return row_summaries


def _finals(comparer: Comparer, row: MatrixRow, variant: Variant) -> Mapping[int, float]:
    return comparer.finals(variant, (row.agent,) if row.agent else comparer.agents)
