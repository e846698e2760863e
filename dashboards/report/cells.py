"""Results of a grid's cells: evaluations, costs, curves, code versions, and cells without a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """A complete cell: its agent's evaluations in order of steps, and all of its metrics.

    `last` is the step after which the training ended, `version` that of the code.
    """

    cell: GridCell
    plan: Plan
    evaluations: list[EvaluationResult]
    curves: pd.DataFrame
    last: int
    version: str

    @property
    def ends(self) -> list[EvaluationResult]:
        """Evaluations before and after training."""
        return [result for result in self.evaluations if result.step in (0, self.last)]


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

    def label(self, pair: str, agent: str) -> str:
        """Name of an agent, with its pair if there are several."""
        return f"{agent} ({pair})" if len(self.pairs) > 1 else agent

    @property
    def variants(self) -> list[Variant]:
        """All of the grid, in grid order."""
        return list(dict.fromkeys(map(variant_of, self.grid.cells)))

    @property
    def benchmarks(self) -> list[str]:
        """Benchmarks evaluated after training: the paper's in its order, then the others."""
        names = dict.fromkeys(name for run in self.runs for name in run.plan.config.evaluate.final)
        return [*(name for name in BENCHMARKS if name in names), *(name for name in names if name not in BENCHMARKS)]

    def of(self, pair: str, agent: str, variant: Variant) -> dict[int, Run]:
        """Complete runs of a pair, agent and method, by seed."""
        key = (pair, agent, variant)
        return {r.cell.seed: r for r in self.runs if (r.cell.pair, r.cell.agent, variant_of(r.cell)) == key}


def variant_of(cell: GridCell) -> Variant:
    """The method of a cell."""
    return Variant(cell.method, cell.label)


def read_results(grid: GridPlan) -> Results:
    """Read every complete experiment of a grid once; an unreadable one counts as missing, with the reason."""
    contents: dict[str, tuple[list[EvaluationResult], pd.DataFrame, int, str] | str] = {}
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
        evaluations, curves, last, version = content
        evaluations = [result for result in evaluations if result.agent == cell.agent]
        runs.append(Run(cell, plan, evaluations, curves[curves.agent == cell.agent], last, version))
    return Results(grid, runs, missing)


def _load(plan: Plan) -> tuple[list[EvaluationResult], pd.DataFrame, int, str]:
    """Evaluations, metrics, last step and version of a complete experiment."""
    final = read_final(plan)
    if final is None:
        raise StoreError(f"{plan.root}: the result was removed after the grid was planned; run the report again")
    curves, last = read_curves(plan.root, plan.config), last_step(plan.root, plan.config)
    return list(results(plan.root)), curves, last, _version(final.versions)


def _version(versions: dict[str, str]) -> str:
    """Version and commit of the code that produced a result."""
    package, commit = versions.get("version.hacpo", "unknown version"), versions.get(COMMIT)
    return f"hacpo {package}, commit {commit}" if commit else f"hacpo {package}"
