"""Results of a grid's cells: evaluations, costs, curves, code versions, and cells without a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dashboards.report.published import BEFORE, BENCHMARKS
from flows.grids.planner import GridPlan
from flows.planning.plans import Plan
from flows.records.gridfile import GridCell
from flows.runs.results import read_curves, read_final
from flows.service.experiment_state import ExperimentState
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.results import EvaluationResult, results
from hacpo_core.evaluation.stopping import last_step

TITLES = {
    BEFORE: "before training",
    "grpo": "GRPO",
    "gspo": "GSPO",
    "gspo_x2": "GSPO x 2",
    "naive": "Naive",
    "hacpo": "HACPO",
    "hacpo_no_adv": "HACPO − Adv",
    "hacpo_no_omega": "HACPO − ω",
    "hacpo_no_baseline_omega": "HACPO − ω in the baseline",
    "hacpo_no_clip": "HACPO, no clip",
    "hacpo_no_stepwise": "HACPO, no stepwise",
    **{f"hacpo_alpha{alpha}": f"HACPO, α = {alpha}" for alpha in range(4)},
    **{f"hacpo_window{window}": f"HACPO, K = {window}" for window in (1, 5, 20)},
}
COMMIT = "mlflow.source.git.commit"


@dataclass(frozen=True, slots=True)
class Variant:
    """A method, and the label of its grid entry if the grid has it more than once."""

    method: str
    label: str = ""

    @property
    def title(self) -> str:
        """Display name of the method, with its label."""
        title = TITLES.get(self.method, self.method)
        return f"{title} ({self.label})" if self.label else title


REFERENCE = Variant("hacpo")
_BASELINES = ("gspo", "grpo", "gspo_x2", "naive")


def method_of_interest(variants: Sequence[Variant]) -> Variant | None:
    """HACPO if a grid has it, else its first method that is not a baseline, else its first one; None for one method."""
    if len(variants) < 2:
        return None
    own_methods = [variant for variant in variants if variant.method not in _BASELINES]
    return REFERENCE if REFERENCE in own_methods else (own_methods or list(variants))[0]


@dataclass(frozen=True, slots=True)
class Run:
    """A complete cell: its agent's evaluations in order of steps, all of its metrics, and its row of the result table.

    `row` has the grid's names of pair and method; `last` is the step after which the training ended.
    """

    cell: GridCell
    plan: Plan
    evaluations: list[EvaluationResult]
    curves: pd.DataFrame
    row: dict[str, Any]
    last: int
    version: str

    @property
    def before(self) -> dict[str, EvaluationResult]:
        """Evaluations before training, by benchmark."""
        return {result.benchmark: result for result in self.evaluations if result.step == 0}

    @property
    def after(self) -> dict[str, EvaluationResult]:
        """Evaluations after training, by benchmark."""
        return {result.benchmark: result for result in self.evaluations if result.step == self.last}

    def total(self, metric: str) -> float:
        """Sum of a metric over all steps; nan if it was never measured."""
        return float(self.curves.loc[self.curves.metric == metric, "value"].sum(min_count=1))


@dataclass(frozen=True, slots=True)
class Results:
    """All complete cells of a grid, in grid order, and the cells without a result."""

    grid: GridPlan
    runs: list[Run]
    missing: list[tuple[GridCell, ExperimentState]] = field(default_factory=list)

    @property
    def places(self) -> list[tuple[str, str]]:
        """(pair, agent), in grid order."""
        return list(dict.fromkeys((cell.pair, cell.agent) for cell in self.grid.cells))

    @property
    def pairs(self) -> list[str]:
        """All of the grid, in grid order."""
        return list(dict.fromkeys(pair for pair, _ in self.places))

    def agents(self, pair: str) -> list[str]:
        """Agents of a pair, in grid order."""
        return [agent for where, agent in self.places if where == pair]

    def label(self, pair: str, agent: str) -> str:
        """Name of an agent, with its pair if there are several."""
        return f"{agent} ({pair})" if len(self.pairs) > 1 else agent

    def holds(self, place: tuple[str, str], variant: Variant) -> bool:
        """Whether the grid has this method for a (pair, agent)."""
        return any(
            (cell.pair, cell.agent) == place and Variant(cell.method, cell.label) == variant for cell in self.grid.cells
        )

    @property
    def variants(self) -> list[Variant]:
        """All of the grid, in grid order."""
        return list(dict.fromkeys(Variant(cell.method, cell.label) for cell in self.grid.cells))

    @property
    def benchmarks(self) -> list[str]:
        """Benchmarks evaluated after training: the paper's in its order, then the others."""
        names = dict.fromkeys(name for run in self.runs for name in run.plan.config.evaluate.final)
        return [*(name for name in BENCHMARKS if name in names), *(name for name in names if name not in BENCHMARKS)]

    def of(self, pair: str, agent: str, variant: Variant | None = None) -> dict[int, Run]:
        """Complete runs of a pair and agent, by seed; without a variant, one run of any variant per seed."""
        return {
            run.cell.seed: run
            for run in reversed(self.runs)
            if (run.cell.pair, run.cell.agent) == (pair, agent)
            and variant in (None, Variant(run.cell.method, run.cell.label))
        }


def read_results(grid: GridPlan) -> Results:
    """Read every complete experiment of a grid once; an unreadable one counts as missing, with the reason."""
    contents: dict[str, _RunData | str] = {}
    runs, missing = [], []
    for cell in grid.cells:
        if grid.states[cell.experiment].state != "done":
            missing.append((cell, grid.states[cell.experiment]))
            continue
        plan = grid.plans[cell.experiment]
        if cell.experiment not in contents:
            try:
                contents[cell.experiment] = _load(plan)
            except StoreError as error:
                contents[cell.experiment] = str(error)
        content = contents[cell.experiment]
        if isinstance(content, str):
            missing.append((cell, ExperimentState("unreadable", content)))
            continue
        names = {"pair": cell.pair, "method": f"{cell.method} {cell.label}".strip()}
        runs.append(
            Run(
                cell=cell,
                plan=plan,
                evaluations=[result for result in content.evaluations if result.agent == cell.agent],
                curves=content.curves[content.curves.agent == cell.agent],
                row=next(row for row in content.table if row["agent"] == cell.agent) | names,
                last=content.last,
                version=content.version,
            )
        )
    return Results(grid, runs, missing)


@dataclass(frozen=True, slots=True)
class _RunData:
    evaluations: list[EvaluationResult]
    curves: pd.DataFrame
    table: list[dict[str, Any]]
    last: int
    version: str


def _load(plan: Plan) -> _RunData:
    final = read_final(plan)
    if final is None:
        raise StoreError(f"{plan.root}: the result was removed after the grid was planned; run the report again")
    curves = read_curves(plan.root, plan.config)
    last = last_step(plan.root, plan.config)
    return _RunData(list(results(plan.root)), curves, final.table, last, _version(final.versions))


def _version(versions: dict[str, str]) -> str:
    """Version and commit of the code that produced a result."""
    package, commit = versions.get("version.hacpo", "unknown version"), versions.get(COMMIT)
    return f"hacpo {package}, commit {commit}" if commit else f"hacpo {package}"


def average(evaluations: dict[str, EvaluationResult], benchmarks: Iterable[str]) -> float:
    """Mean over benchmarks of each one's main metric; nan if one is missing or there are none."""
    values = [evaluations[name].value if name in evaluations else np.nan for name in benchmarks]
    return float(np.mean(values)) if values else np.nan
