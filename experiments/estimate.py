"""What a grid still costs: rollouts and tokens from the configuration, hours from measured or stated rates.

    busy[k]   = tokens sampled[k] / rate of sampling + tokens trained on[k] / rate of training
    wall      = max_k busy[k] / devices[k]       agents side by side: an agent samples, waits for the others' responses
                                                 (the advantages are joint), updates and samples at once, so every
                                                 step takes as long as its slowest agent
              = sum_k busy[k] / devices[k]       agents that take turns
    occupied  = wall x devices that the experiment holds from its start to its end

Verification, hand-overs of weights and checkpoints are not in it; `experiments.phase_times` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from experiments.planner import GridPlan, RateConfig
from experiments.published.models import published_shapes
from flows.planning.plans import Plan
from flows.runs.results import read_final
from hacpo_core.config import BenchmarkConfig, ExperimentConfig
from hacpo_core.config.counts import benchmarks_after, num_gpus, num_processes, num_ranks, num_samples, num_sources
from hacpo_core.data.arithmetic import split_expressions
from hacpo_core.engines.models.memory import folder_shape, sizes_of
from hacpo_core.errors import ModelError


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Of one experiment or of several. Hours are of one device (GPU, or CPU core where the device is cpu).

    `busy_hours` are those in which a device works, `occupied_hours` those in which no other experiment can have it.
    """

    experiments: int
    rollouts: int
    evaluation_responses: int
    sampled_tokens: float
    trained_tokens: float
    busy_hours: float | None
    occupied_hours: float | None
    basis: str
    """measured | stated | limit (every response as long as allowed, no rate known)"""


@dataclass(frozen=True, slots=True)
class _Measured:
    """Sums over experiments of one agent, in training."""

    rollouts: float = 0.0
    sampled: float = 0.0
    trained: float = 0.0
    """tokens of rows that carried a gradient"""
    device_s: float = 0.0

    def plus(self, other: _Measured) -> _Measured:
        return _Measured(
            self.rollouts + other.rollouts,
            self.sampled + other.sampled,
            self.trained + other.trained,
            self.device_s + other.device_s,
        )


def estimate(grid: GridPlan, plans: Sequence[Plan]) -> CostEstimate:
    """Sum over experiments; the weakest basis of any of them is the sum's.

    Args:
        grid: its complete experiments give the measured rates, per agent; its `rates` the stated ones.
        plans: experiments to be paid for.
    """
    measured = _measure(grid)
    parts = [_of_one(planned.config, measured, grid.config.rates) for planned in plans]
    order = ("measured", "stated", "limit")
    return CostEstimate(
        experiments=len(parts),
        rollouts=sum(part.rollouts for part in parts),
        evaluation_responses=sum(part.evaluation_responses for part in parts),
        sampled_tokens=sum(part.sampled_tokens for part in parts),
        trained_tokens=sum(part.trained_tokens for part in parts),
        busy_hours=_sum([part.busy_hours for part in parts]),
        occupied_hours=_sum([part.occupied_hours for part in parts]),
        basis=max((part.basis for part in parts), key=order.index, default="measured"),
    )


def _sum(hours: Sequence[float | None]) -> float | None:
    return None if None in hours else sum(hour or 0.0 for hour in hours)


def _of_one(config: ExperimentConfig, measured: _AllMeasured, rates: RateConfig | None) -> CostEstimate:
    rollouts_each = num_rollouts(config)
    answers_each = num_evaluation_responses(config)
    sampled = trained = 0.0
    agents = list(config.pair.agents)
    sizes = _num_parameters(config) if rates is not None and rates.billions is not None else {}
    hours: dict[str, float] = {}
    found = [_of_agent(measured, k, config.method.name) for k in agents]
    for k, past in zip(agents, found, strict=True):
        if past is not None:
            length, trained_each = past.sampled / past.rollouts, past.trained / past.rollouts
        else:
            length = rates.response_tokens if rates is not None else config.rollout.max_response_tokens
            trained_each = length * num_sources(config)
        own_sampled, own_trained = length * (rollouts_each + answers_each), trained_each * rollouts_each
        sampled, trained = sampled + own_sampled, trained + own_trained
        if past is not None:
            hours[k] = (own_sampled + own_trained) / (past.sampled + past.trained) * past.device_s / 3600
        elif rates is not None:
            size = sizes.get(k)
            seconds = own_sampled / sampling_rate(rates, size) + own_trained / training_rate(rates, size)
            hours[k] = seconds / 3600
    is_measured = None not in found
    is_known = is_measured or rates is not None
    return CostEstimate(
        experiments=1,
        rollouts=rollouts_each * len(agents),
        evaluation_responses=answers_each * len(agents),
        sampled_tokens=sampled,
        trained_tokens=trained,
        busy_hours=sum(hours.values()) if is_known else None,
        occupied_hours=occupied_hours(config, hours) if is_known else None,
        basis="measured" if is_measured else "stated" if is_known else "limit",
    )


def occupied_hours(config: ExperimentConfig, busy: Mapping[str, float]) -> float:
    """Hours of devices that an experiment holds, from the hours in which each agent's devices work."""
    gpus = max(1, num_gpus(config))
    wall = [hours / (num_ranks(config, k) * gpus) for k, hours in busy.items()]
    takes_turns = config.placement.kind == "local" or config.placement.colocated
    return (sum(wall) if takes_turns else max(wall)) * num_processes(config) * gpus


def sampling_rate(rates: RateConfig, parameters: int | None) -> float:
    """Tokens per second that one GPU samples with a model of N parameters.

        rate of the model that the rates are of x sqrt(its parameters / N)

    between a decoder that waits for its weights, where it would be their ratio, and one that waits for keys and
    values, which hardly grow with the model. Assumed, not measured.
    """
    return rates.sampled_tokens_per_gpu_s / math.sqrt(_relative_size(rates, parameters))


def training_rate(rates: RateConfig, parameters: int | None) -> float:
    """Tokens per second that one GPU trains a model of N parameters on: in inverse proportion to N."""
    return rates.trained_tokens_per_gpu_s / _relative_size(rates, parameters)


def _relative_size(rates: RateConfig, parameters: int | None) -> float:
    return parameters / 1e9 / rates.billions if parameters is not None and rates.billions is not None else 1.0


def _num_parameters(config: ExperimentConfig) -> dict[str, int]:
    """Parameters of those agents that are models of the paper, or whose folder is on this machine."""
    shapes = published_shapes(config)
    for k, agent in config.pair.agents.items():
        if k not in shapes and agent.path is not None and Path(agent.path).is_dir():
            with suppress(ModelError):  # the plan says what is wrong with it
                shapes[k] = folder_shape(Path(agent.path), trust_remote_code=agent.trust_remote_code)
    return sizes_of(shapes)


def num_rollouts(config: ExperimentConfig) -> int:
    """Responses that one agent samples in training."""
    return config.train.num_steps * config.train.problems * num_samples(config)


def num_evaluation_responses(config: ExperimentConfig) -> int:
    """Responses of one agent in all evaluations; a benchmark without a stated size counts 0."""
    return sum(num_problems(benchmark) * benchmark.num_samples for one in evaluations(config) for benchmark in one)


def evaluations(config: ExperimentConfig) -> list[list[BenchmarkConfig]]:
    """The benchmarks of each evaluation of a training, in order."""
    named = [benchmarks_after(config, step) for step in range(config.train.num_steps + 1)]
    return [[config.evaluate.benchmarks[name] for name in dict.fromkeys(names)] for names in named if names]


def num_problems(benchmark: BenchmarkConfig) -> int:
    """Problems that are asked; 0 where the declaration does not say how many the set has."""
    is_embedded = benchmark.kind == "arithmetic"
    stated = len(split_expressions(benchmark.split)) if is_embedded else benchmark.count  # type: ignore[arg-type]
    return min((size for size in (stated, benchmark.limit) if size), default=0)


_AllMeasured = dict[tuple[str, str], _Measured]
"""by agent and method"""


def _measure(grid: GridPlan) -> _AllMeasured:
    """What the grid's complete experiments took, agent by agent and method by method."""
    sums: _AllMeasured = {}
    for planned in grid.experiments("done"):
        result, config = read_final(planned), planned.config
        seconds = "seconds" if config.engine.device == "cpu" else "gpu_seconds"
        for row in result.table if result is not None else []:
            one = _Measured(num_rollouts(config), row["tokens_sampled"], row["tokens_trained"], row[seconds])
            if one.rollouts > 0 and one.sampled > 0 and one.device_s > 0:
                key = (row["agent"], config.method.name)
                sums[key] = sums.get(key, _Measured()).plus(one)
    return sums


def _of_agent(measured: _AllMeasured, agent: str, method: str) -> _Measured | None:
    """What the agent took with this method, else with all methods that it was trained with; None where it was not."""
    if (agent, method) in measured:
        return measured[agent, method]
    others = [one for (name, _), one in measured.items() if name == agent]
    return reduce(_Measured.plus, others) if others else None
