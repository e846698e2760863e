"""What a grid still costs: rollouts and tokens from the configuration, hours from measured or stated rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.planner import GridPlan, RateConfig
from flows.plans import Plan
from flows.results import read_final
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.arithmetic import split_expressions
from hacpo_core.validation import num_samples, num_sources


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one experiment or of several. Hours are of one device (GPU, or CPU core where the device is cpu)."""

    experiments: int
    rollouts: int
    evaluation_responses: int
    sampled_tokens: float
    trained_tokens: float
    device_hours: float | None
    basis: str
    """measured | stated | limit (every response as long as allowed, no rate known)"""


@dataclass(frozen=True, slots=True)
class _Measured:
    response_tokens: float
    tokens_per_s: float


def estimate(grid: GridPlan, plans: Sequence[Plan]) -> Estimate:
    """Sum over experiments; the weakest basis of any of them is the sum's.

    Args:
        grid: its complete experiments give the measured rates, per agent; its `rates` the stated ones.
        plans: experiments to be paid for.
    """
    measured = _measure(grid)
    parts = [_of_one(planned.config, measured, grid.config.rates) for planned in plans]
    order = ("measured", "stated", "limit")
    hours = [part.device_hours for part in parts]
    return Estimate(
        experiments=len(parts),
        rollouts=sum(part.rollouts for part in parts),
        evaluation_responses=sum(part.evaluation_responses for part in parts),
        sampled_tokens=sum(part.sampled_tokens for part in parts),
        trained_tokens=sum(part.trained_tokens for part in parts),
        device_hours=None if None in hours else sum(hour or 0.0 for hour in hours),
        basis=max((part.basis for part in parts), key=order.index, default="measured"),
    )


def _of_one(config: ExperimentConfig, measured: dict[str, _Measured], rates: RateConfig | None) -> Estimate:
    rollouts_each = num_rollouts(config)
    answers_each = num_evaluation_responses(config)
    sampled = trained = hours = 0.0
    agents = list(config.pair.agents)
    for k in agents:
        if k in measured:
            length = measured[k].response_tokens
        else:
            length = rates.response_tokens if rates is not None else config.rollout.max_response_tokens
        own_sampled = length * (rollouts_each + answers_each)
        own_trained = length * rollouts_each * num_sources(config)
        sampled, trained = sampled + own_sampled, trained + own_trained
        if k in measured:
            hours += (own_sampled + own_trained) / measured[k].tokens_per_s / 3600
        elif rates is not None:
            seconds = own_sampled / rates.sampled_tokens_per_gpu_s + own_trained / rates.trained_tokens_per_gpu_s
            hours += seconds / 3600
    is_measured = all(k in measured for k in agents)
    is_known = is_measured or rates is not None
    return Estimate(
        experiments=1,
        rollouts=rollouts_each * len(agents),
        evaluation_responses=answers_each * len(agents),
        sampled_tokens=sampled,
        trained_tokens=trained,
        device_hours=hours if is_known else None,
        basis="measured" if is_measured else "stated" if is_known else "limit",
    )


def num_rollouts(config: ExperimentConfig) -> int:
    """Responses that one agent samples in training."""
    return config.train.num_steps * config.train.problems * num_samples(config)


def num_evaluation_responses(config: ExperimentConfig) -> int:
    """Responses of one agent in all evaluations; a benchmark without a stated size counts 0."""
    chosen, benchmarks = config.evaluate, config.evaluate.benchmarks
    every = config.evaluate.every
    times = dict.fromkeys({*chosen.during, *chosen.final}, 2)
    for name in chosen.during:
        times[name] += (config.train.num_steps - 1) // every if every else 0
    total = 0
    for name, number in times.items():
        benchmark = benchmarks[name]
        is_embedded = benchmark.source == "arithmetic"
        stated = len(split_expressions(benchmark.split)) if is_embedded else benchmark.count  # type: ignore[arg-type]
        sizes = [size for size in (stated, benchmark.limit) if size]
        total += number * (min(sizes) if sizes else 0) * benchmark.num_samples
    return total


def _measure(grid: GridPlan) -> dict[str, _Measured]:
    """Mean response length and tokens per second (sampled and trained together) of each agent that has run."""
    sums: dict[str, list[float]] = {}
    for planned in grid.experiments("done"):
        result = read_final(planned)
        for row in result.table if result is not None else []:
            total = sums.setdefault(row["agent"], [0.0, 0.0, 0.0, 0.0])
            parts = (row["tokens_sampled"], num_rollouts(planned.config), row["tokens_trained"], row["seconds"])
            total[:] = [before + part for before, part in zip(total, parts, strict=True)]
    return {
        k: _Measured(sampled / rollouts, (sampled + trained) / seconds)
        for k, (sampled, rollouts, trained, seconds) in sums.items()
        if seconds > 0 and rollouts > 0
    }
