"""Records of a grid's matrix: cells, rows, sections and totals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from dashboards.report.cells import Variant
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
    """A method; one cell or None per seed."""

    key: str
    variant: Variant
    cells: tuple[MatrixCell | None, ...]

    @property
    def title(self) -> str:
        """Its method."""
        return self.variant.title if self.variant.method else "run"


@dataclass(frozen=True, slots=True)
class MatrixSection:
    """The rows of a pair, with one column per seed."""

    pair: str
    seeds: tuple[int, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def accuracies(self) -> tuple[float, float]:
        """The lowest and the highest accuracy of its complete cells."""
        cells = [cell for row in self.rows for cell in row.cells if cell is not None and cell.state == "done"]
        values = [cell.value for cell in cells if cell.value is not None]
        return min(values, default=0.0), max(values, default=0.0)


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
    """A grid with the state of every cell, and a cell for each of its experiments alone."""

    name: str
    title: str
    sections: tuple[MatrixSection, ...]
    experiments: tuple[MatrixCell, ...]
    totals: MatrixTotals
