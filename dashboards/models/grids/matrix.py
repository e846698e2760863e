"""Records of a grid's matrix: cells, rows, sections and totals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flows.records.progress import Spent
from flows.service.experiment_state import CANCELLING


@dataclass(frozen=True, slots=True)
class Score:
    """An agent's accuracy at its last evaluation, averaged over the grid's benchmarks."""

    agent: str
    value: float


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The experiments of one row and seed of a grid; `key` is its element id in the page.

    There are several in the row of a method that trains each agent alone; the state is then that of the one that most
    needs a look, and steps and costs are sums. `findings` are those about their health that hold, in brief.
    """

    key: str
    experiments: tuple[str, ...]
    seed: int
    state: str
    reason: str
    step: int
    num_steps: int
    scores: tuple[Score, ...]
    seconds_left: float | None
    spent: Spent
    priority: str
    findings: tuple[str, ...] = ()

    @property
    def experiment(self) -> str:
        """Its experiment, the first if there are several."""
        return self.experiments[0]

    @property
    def value(self) -> float | None:
        """Mean accuracy of its agents; None before the first evaluation."""
        return statistics.fmean(score.value for score in self.scores) if self.scores else None

    @property
    def remark(self) -> str:
        """Reason of its state; "" for done and running cells, whose step is shown instead."""
        return self.reason if self.state not in ("done", "running") or self.reason == CANCELLING else ""

    @property
    def share(self) -> float:
        """Share of completed steps, in [0, 1]."""
        return self.step / self.num_steps if self.num_steps else 0.0


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A method, or one agent of it; one cell or None per seed.

    `is_part` marks the single-agent runs below the row of their method, which shows them together.
    """

    key: str
    method: str
    label: str
    agent: str
    cells: tuple[MatrixCell | None, ...]
    is_part: bool = False
    has_parts: bool = False


@dataclass(frozen=True, slots=True)
class MatrixSection:
    """The rows of a pair, with one column per seed."""

    pair: str
    seeds: tuple[int, ...]
    rows: tuple[MatrixRow, ...]


@dataclass(frozen=True, slots=True)
class MatrixTotals:
    """Progress of a grid, each experiment counted once; `seconds_left` is None if it cannot be estimated yet.

    `num_with_findings` counts the experiments whose health is in question.
    """

    counts: Mapping[str, int]
    spent: Spent
    seconds_left: float | None
    num_slots: int
    num_with_findings: int = 0

    @property
    def num_all(self) -> int:
        """Number of experiments in the grid."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Matrix:
    """A grid with the state of every cell."""

    name: str
    title: str
    sections: tuple[MatrixSection, ...]
    totals: MatrixTotals

    def cells(self) -> Iterable[MatrixCell]:
        """All cells, in page order."""
        return (cell for section in self.sections for row in section.rows for cell in row.cells if cell is not None)


def beginning(matrix: Matrix, max_cells: int) -> Matrix:
    """The first sections, rows and seeds, with at most `max_cells` cells; totals remain those of the whole grid."""
    sections: list[MatrixSection] = []
    num_left = max_cells
    for section in matrix.sections:
        seeds = section.seeds[:num_left]
        if not seeds:
            break
        rows = [replace(row, cells=row.cells[: len(seeds)]) for row in section.rows[: num_left // len(seeds)]]
        sections.append(replace(section, seeds=seeds, rows=tuple(rows)))
        num_left -= len(seeds) * len(rows)
    return replace(matrix, sections=tuple(sections))
