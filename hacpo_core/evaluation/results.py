"""Results of evaluations in the step store; needs no torch."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import benchmarks_after
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.metrics import MetricEstimate
from hacpo_core.records import PhaseCost
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Result of an evaluation: metrics, shares of cut and unscored responses, and cost.

    `digest` covers problems and settings, to detect when they change under the same name. `shards` are the first
    problem and the one after the last of each committed shard.
    """

    benchmark: str
    agent: str
    step: int
    digest: str
    declaration: dict[str, Any]
    estimates: tuple[MetricEstimate, ...]
    headline: str
    num_problems: int
    num_samples: int
    cut_share: float
    unscored_share: float
    shards: tuple[tuple[int, int], ...]
    cost: PhaseCost

    @property
    def headline_estimate(self) -> MetricEstimate:
        """The estimate of the benchmark's own metric."""
        return next(estimate for estimate in self.estimates if estimate.metric == self.headline)

    @property
    def value(self) -> float:
        """The value shown in the result table."""
        return self.headline_estimate.value

    def __str__(self) -> str:
        """As shown to users."""
        return f"step {self.step}: {self.agent} on {self.benchmark} {self.value:.3f}"


def result_phase(benchmark: str, agent: str) -> str:
    """Name of the phase that commits the metrics."""
    return f"evaluate.{benchmark}.{agent}"


def shard_kind(benchmark: str, shard: range) -> str:
    """Kind of the phases that commit the responses to one shard of the problems."""
    return f"answer.{benchmark}.{shard.start}-{shard.stop}"


def is_done(store: StepStore, step: int, phase: str, digest: str) -> bool:
    """Whether a phase of an evaluation is committed for the problems and settings of this digest."""
    if not store.is_intact(step, phase):
        return False
    is_same: bool = store.read_value(step, phase, f"{phase}.json")["digest"] == digest
    if not is_same:
        _log.warning("step %d: %s was committed for other problems or settings and is run again", step, phase)
    return is_same


def read_result(store: StepStore, step: int, phase: str) -> EvaluationResult:
    """A committed result.

    Raises:
        StoreError: it is not committed or corrupt.
    """
    value = store.read_value(step, phase, f"{phase}.json")
    return EvaluationResult(
        **{
            **value,
            "estimates": tuple(MetricEstimate(**estimate) for estimate in value["estimates"]),
            "shards": tuple((first, end) for first, end in value["shards"]),
            "cost": PhaseCost(**value["cost"]),
        }
    )


def results(root: Path) -> Iterator[EvaluationResult]:
    """Every complete evaluation, in the order of the steps.

    Raises:
        StoreError: one is corrupt.
    """
    store = StepStore(root)
    for step, phase in _evaluations(store):
        if not store.is_intact(step, phase):
            raise StoreError(
                f"{store.folder(step) / f'{phase}.json'} is missing or was altered after it was committed; restore it, "
                f"or evaluate again with `hacpo evaluate {root.name} --step {step}`"
            )
        yield read_result(store, step, phase)


def intact_results(root: Path) -> Iterator[EvaluationResult]:
    """As `results`, but skip corrupt results with a warning, for example after a power cut."""
    store = StepStore(root)
    for step, phase in _evaluations(store):
        if store.is_intact(step, phase):
            yield read_result(store, step, phase)
        else:
            _log.warning("%s: step %d, %s is corrupt and left out until it is evaluated again", root, step, phase)


def _evaluations(store: StepStore) -> Iterator[tuple[int, str]]:
    for step in range(store.last_step() + 1):
        for phase in store.committed(step):
            if phase.startswith("evaluate."):
                yield step, phase


def health_values(result: EvaluationResult, config: ExperimentConfig) -> dict[str, dict[str, float]]:
    """What health rules read of an evaluation, by agent; nothing unless the training evaluates the benchmark."""
    if result.benchmark not in (*config.evaluate.during, *config.evaluate.final) or math.isnan(result.value):
        return {}
    name = f"evaluate/{result.benchmark}"
    return {result.agent: {name: result.value, f"{name}_error": result.headline_estimate.standard_error}}


def team_accuracies(root: Path, config: ExperimentConfig, benchmark: str) -> Mapping[int, float]:
    """Mean accuracy of all agents after each step at which the training evaluates the benchmark.

    Steps that lack an agent are left out, as is what `hacpo evaluate` measured after other steps.
    """
    by_step: dict[int, list[float]] = {}
    for result in intact_results(root):
        if result.benchmark == benchmark and benchmark in benchmarks_after(config, result.step):
            by_step.setdefault(result.step, []).append(result.value)
    return {step: fmean(values) for step, values in by_step.items() if len(values) == len(config.pair.agents)}
