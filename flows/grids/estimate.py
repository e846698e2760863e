"""Estimated cost of a grid: rollouts and tokens from the configuration, hours from stated rates.

    busy[k]   = tokens sampled[k] / sampling rate + tokens trained on[k] / training rate     (device-hours)
    wall      = max_k busy[k] / devices[k]       agents in parallel: advantages are joint, so each agent waits for the
                                                 others' responses, and a step takes as long as its slowest agent
              = sum_k busy[k] / devices[k]       agents that share devices
    occupied  = wall x devices that the experiment holds from start to end

Verification, weight hand-overs and checkpoints are not included.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from flows.grids.planner import GridPlan, RateConfig
from flows.planning.disk import checkpoint_space
from flows.planning.memory import ModelShape, folder_shape, published_shapes, sizes_of
from flows.planning.plans import Plan
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import benchmarks_after, num_gpus, num_processes, num_ranks, num_samples, num_sources
from hacpo_core.data.benchmarks import load_benchmark
from hacpo_core.errors import DataError, ModelError


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Cost of one or several experiments, in device-hours (GPU, or CPU core if the device is cpu).

    `busy_hours` count the time in which a device works, `occupied_hours` that in which no other experiment can use it.
    """

    experiments: int
    rollouts: int
    evaluation_responses: int
    sampled_tokens: float
    trained_tokens: float
    busy_hours: float | None
    occupied_hours: float | None
    disk_gib: float
    """of all checkpoints once all experiments are complete"""
    disk_training_gib: float
    """of the checkpoints of one experiment while it trains"""


def estimate(grid: GridPlan, plans: Sequence[Plan]) -> CostEstimate:
    """Estimate the total cost of some experiments.

    Args:
        grid: with the stated rates.
        plans: experiments to estimate.
    """
    parts = [_estimate_one(plan.config, grid.config.rates) for plan in plans]
    values = {field.name: [getattr(part, field.name) for part in parts] for field in fields(CostEstimate)}
    total = {name: None if None in numbers else sum(numbers) for name, numbers in values.items()}
    return CostEstimate(**total | {"disk_training_gib": max(values["disk_training_gib"], default=0.0)})


def _estimate_one(config: ExperimentConfig, rates: RateConfig | None) -> CostEstimate:
    num_agent_rollouts, num_responses = num_rollouts(config), num_evaluation_responses(config)
    agents = config.pair.agents
    length = rates.response_tokens if rates is not None else config.rollout.max_response_tokens
    num_sampled = length * (num_agent_rollouts + num_responses)
    num_trained = length * num_sources(config) * config.method.build.num_iterations * num_agent_rollouts
    hours, shapes = None, _shapes(config)
    space = checkpoint_space(config, shapes)
    if rates is not None:
        sizes = sizes_of(shapes) if rates.billions is not None else {}
        hours = {
            k: (num_sampled / sampling_rate(rates, sizes.get(k)) + num_trained / training_rate(rates, sizes.get(k)))
            / 3600
            for k in agents
        }
    return CostEstimate(
        experiments=1,
        rollouts=num_agent_rollouts * len(agents),
        evaluation_responses=num_responses * len(agents),
        sampled_tokens=num_sampled * len(agents),
        trained_tokens=num_trained * len(agents),
        busy_hours=None if hours is None else sum(hours.values()),
        occupied_hours=None if hours is None else occupied_hours(config, hours),
        disk_gib=space.complete,
        disk_training_gib=space.training,
    )


def occupied_hours(config: ExperimentConfig, busy: Mapping[str, float]) -> float:
    """Device-hours that an experiment occupies.

    Args:
        config: of the experiment.
        busy: device-hours in which each agent's devices work.
    """
    gpus = max(1, num_gpus(config))
    wall = [hours / (num_ranks(config, k) * gpus) for k, hours in busy.items()]
    takes_turns = config.placement.kind == "local" or config.placement.colocated
    return (sum(wall) if takes_turns else max(wall)) * num_processes(config) * gpus


def sampling_rate(rates: RateConfig, parameters: int | None) -> float:
    """Sampling rate of one GPU with a model of N parameters, tokens/s.

        stated rate x sqrt(parameters of the stated model / N)

    The square root lies between decoding that is limited by reading weights (rate ~ 1 / N) and decoding that is
    limited by reading keys and values (nearly independent of N). Assumed, not measured.
    """
    return rates.sampled_tokens_per_gpu_s / math.sqrt(_relative_size(rates, parameters))


def training_rate(rates: RateConfig, parameters: int | None) -> float:
    """Training rate of one GPU with a model of N parameters, tokens/s; inversely proportional to N."""
    return rates.trained_tokens_per_gpu_s / _relative_size(rates, parameters)


def _relative_size(rates: RateConfig, parameters: int | None) -> float:
    return parameters / 1e9 / rates.billions if parameters is not None and rates.billions is not None else 1.0


def _shapes(config: ExperimentConfig) -> dict[str, ModelShape]:
    """Shapes of agents that are models of the paper, or whose folder is on this machine."""
    shapes = published_shapes(config)
    for k, agent in config.pair.agents.items():
        if k not in shapes and agent.path is not None and Path(agent.path).is_dir():
            with suppress(ModelError):  # planning reports the error
                shapes[k] = folder_shape(Path(agent.path))
    return shapes


def num_rollouts(config: ExperimentConfig) -> int:
    """Number of responses that one agent samples in training."""
    return config.train.num_steps * config.train.problems * num_samples(config)


def num_evaluation_responses(config: ExperimentConfig) -> int:
    """Number of responses of one agent in all evaluations; of a benchmark without `count`, its file's."""
    benchmarks = config.evaluate.benchmarks
    responses = {name: _num_problems(config, name) * benchmark.num_samples for name, benchmark in benchmarks.items()}
    steps = range(config.train.num_steps + 1)
    return sum(responses[name] for step in steps for name in dict.fromkeys(benchmarks_after(config, step)))


def _num_problems(config: ExperimentConfig, name: str) -> int:
    """Number of evaluated problems of a benchmark; 0 if no size is declared and its file is not here."""
    benchmark = config.evaluate.benchmarks[name]
    if benchmark.count is not None:
        return min(benchmark.count, benchmark.limit or benchmark.count)
    with suppress(DataError):  # planning reports the error
        return len(load_benchmark(name, benchmark, config.data).problems)
    return 0
