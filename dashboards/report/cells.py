"""The cells of a grid: their methods, and what agents' trainings have measured so far, from the progress files."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboards.report.published import BEFORE
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import Evaluation, Spent
from flows.records.states import ExperimentStatus

StatusOf = Callable[[str], ExperimentStatus]
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


def variant_of(cell: GridCell) -> Variant:
    """The method of a cell."""
    return Variant(cell.method, cell.label)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """An agent's evaluations in the experiment of a folder; `last` is the final step of a complete one, else None."""

    root: Path
    agent: str
    evaluations: tuple[Evaluation, ...]
    last: int | None
    scores: Mapping[str, Mapping[str, float | None]] | None = None
    """of each problem after the last step by benchmark; None: they are read from the folder"""

    def at(self, step: int | None) -> dict[str, Evaluation]:
        """The evaluations after a step, by benchmark."""
        return {evaluation.benchmark: evaluation for evaluation in self.evaluations if evaluation.step == step}

    def value(self, step: int | None, benchmarks: Iterable[str]) -> float:
        """Mean over benchmarks after a step; nan if one is missing or there are none."""
        ends, names = self.at(step), list(benchmarks)
        values = [ends[name].value if name in ends else math.nan for name in names]
        return statistics.fmean(values) if values else math.nan

    def spent(self, step: int | None) -> Spent | None:
        """The cost up to a step after which it was evaluated."""
        return next((evaluation.spent for evaluation in self.at(step).values()), None)


PairAgent = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GridRuns:
    """All cells of a grid: for every planned pair, agent and method, its seeds, complete or not."""

    record: GridRecord
    by_seed: Mapping[tuple[str, str, Variant], Mapping[int, AgentRun]]

    @property
    def variants(self) -> list[Variant]:
        """All methods, in grid order."""
        return list(dict.fromkeys(variant for *_, variant in self.by_seed))

    @property
    def pairs(self) -> list[str]:
        """All pairs, in grid order."""
        return list(dict.fromkeys(pair for pair, *_ in self.by_seed))

    def places(self, *variants: Variant) -> list[PairAgent]:
        """Every pair and agent for which all of these methods are planned, in grid order."""
        places = dict.fromkeys((pair, agent) for pair, agent, _ in self.by_seed)
        return [place for place in places if all((*place, variant) in self.by_seed for variant in variants)]

    def common_seeds(self, ours: Variant, theirs: Variant, places: Sequence[PairAgent]) -> list[int]:
        """Seeds that are complete for both methods in all of these places."""
        cells = [self.by_seed[*place, variant] for place in places for variant in (ours, theirs)]
        seeds = [{seed for seed, run in by_seed.items() if run.last is not None} for by_seed in cells]
        return sorted(set.intersection(*seeds)) if seeds else []


def read_runs(record: GridRecord, status_of: StatusOf, root_of: Callable[[str], Path]) -> GridRuns:
    """What the cells of a grid have measured."""
    by_seed: dict[tuple[str, str, Variant], dict[int, AgentRun]] = {}
    for cell in record.cells:
        status = status_of(cell.experiment)
        evaluations = status.progress.evaluations if status.progress is not None else ()
        last = status.progress.num_steps if status.progress is not None and status.state == "done" else None
        run = AgentRun(
            root_of(cell.experiment), cell.agent, tuple(e for e in evaluations if e.agent == cell.agent), last
        )
        by_seed.setdefault((cell.pair, cell.agent, variant_of(cell)), {})[cell.seed] = run
    return GridRuns(record, by_seed)
