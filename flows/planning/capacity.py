"""Fields that depend on the sizes of models: ranks, recomputed layers, shares of a GPU; and plans that cannot fit."""

import math
from collections.abc import Mapping
from dataclasses import replace

import psutil

from flows.planning.memory import (
    GIB,
    ModelShape,
    gpu_gib,
    memory_of_agents,
    min_gpu_gib,
    num_trained,
    peak_gib,
    used_gib,
)
from hacpo_core.config import AUTO, ExperimentConfig
from hacpo_core.config.counts import num_sources, sharing_agents
from hacpo_core.data.rows import warn_once
from hacpo_core.errors import CapacityError, ConfigError

MARGIN_GIB = 2.0
"""part of a GPU that plans leave free: fragmentation is not in the sums"""
MAX_SHARE = 0.9
_TINY = ModelShape(0, 0, 0, 0, 0, 0, 0)


def with_memory_plan(config: ExperimentConfig, shapes: Mapping[str, ModelShape]) -> ExperimentConfig:
    """The configuration with a value in place of each `auto` that depends on the memory of a GPU.

    Each agent recomputes the activations of as few layers as possible for all to fit while it trains. The sampler's
    share is the largest that leaves room for all else.

    Args:
        config: a valid configuration, with the numbers of ranks.
        shapes: of its agents' models; a model without one counts as nothing.

    Raises:
        ConfigError: the GPU's memory is unknown.
    """
    fields = memory_fields(config)
    if not fields:
        return config
    room = gpu_gib(config)
    if room is None:
        raise ConfigError(
            f"{fields[-1]}: got auto, but no GPU is here whose memory decides it; set engine.gpu_memory_gb to the "
            "memory of one GPU, or the field to a value"
        )
    if config.engine.gradient_checkpointing == AUTO:
        config = _with_recomputed_layers(config, _shapes_of_all(config, shapes), gpu_gib=room)
    if has_auto_share(config):
        config = _with_share(config, max_memory_share(config, shapes, gpu_gib=room))
    return config


def memory_fields(config: ExperimentConfig) -> list[str]:
    """Fields that planning sets from the memory of a GPU."""
    fields = ["engine.gradient_checkpointing"] if config.engine.gradient_checkpointing == AUTO else []
    return fields + (["engine.vllm.memory_share"] if has_auto_share(config) else [])


def has_auto_share(config: ExperimentConfig) -> bool:
    """Whether planning computes the sampler's share of a GPU."""
    return config.engine.sampler == "vllm" and config.engine.vllm.memory_share == AUTO


def _with_recomputed_layers(
    config: ExperimentConfig, shapes: Mapping[str, ModelShape], *, gpu_gib: float
) -> ExperimentConfig:
    """The configuration with the fewest recomputed layers of each agent that leave `MARGIN_GIB` of its GPU free."""
    for agent, shape in shapes.items():
        if config.pair.agents[agent].recomputed_layers is not None:
            continue
        for num_layers in range(shape.num_layers + 1):
            config = _with_agents_layers(config, agent, num_layers)
            memory = memory_of_agents(config, shapes, gpu_gib=gpu_gib)
            if used_gib(config, memory, lambda needs: needs.updating)[agent] <= gpu_gib - MARGIN_GIB:
                break
    recomputes = any(agent.recomputed_layers for agent in config.pair.agents.values())
    return replace(config, engine=replace(config.engine, gradient_checkpointing=recomputes))


def _with_agents_layers(config: ExperimentConfig, agent: str, num_layers: int) -> ExperimentConfig:
    agents = {**config.pair.agents, agent: replace(config.pair.agents[agent], recomputed_layers=num_layers)}
    return replace(config, pair=replace(config.pair, agents=agents))


def _with_share(config: ExperimentConfig, share: float | str) -> ExperimentConfig:
    vllm = replace(config.engine.vllm, memory_share=share)
    return replace(config, engine=replace(config.engine, vllm=vllm))


def max_memory_share(config: ExperimentConfig, shapes: Mapping[str, ModelShape], *, gpu_gib: float) -> float:
    """Largest share of a GPU that each engine can take, in hundredths.

        share = (gpu - margin - h) / gpu,   at most MAX_SHARE, at least weights and one response

    h is all else on the fullest GPU while an agent samples; other engines of the GPU sleep then.

    Args:
        config: the experiment's, with the numbers of ranks.
        shapes: of its agents' models; a model without one counts as nothing.
        gpu_gib: memory of one GPU in GiB.
    """
    config = _with_share(config, AUTO)
    memory = memory_of_agents(config, _shapes_of_all(config, shapes), gpu_gib=gpu_gib)
    min_share = max(agent.sampler for agent in memory.values()) / gpu_gib
    memory_without_sampler = {k: replace(agent, sampler=0.0) for k, agent in memory.items()}
    used = max(used_gib(config, memory_without_sampler, lambda agent: agent.sampling).values())
    share = (gpu_gib - MARGIN_GIB - used) / gpu_gib
    return max(math.floor(100 * min(share, MAX_SHARE)), math.ceil(100 * min_share)) / 100


def _shapes_of_all(config: ExperimentConfig, shapes: Mapping[str, ModelShape]) -> dict[str, ModelShape]:
    """A shape for each agent: of no size where it is unknown."""
    return {k: shapes.get(k, _TINY) for k in config.pair.agents}


def check_fits(config: ExperimentConfig, shapes: Mapping[str, ModelShape]) -> None:
    """Raise CapacityError if agents of these shapes cannot fit, even with one response at a time.

    A plan whose full passes leave less than `MARGIN_GIB` gets a warning.

    Args:
        config: the experiment's.
        shapes: of its agents, as far as they are known.
    """
    billions = " and ".join(f"{shape.num_parameters / 1e9:.1f}" for shape in shapes.values())
    host, machine = host_gib(config, shapes), psutil.virtual_memory().total / GIB
    if min_gpu_gib() is not None and host > machine:  # this machine has the GPU
        raise CapacityError(
            f"engine: agents of {billions} billion parameters need at least {host:.0f} GiB of host memory, but the "
            f"machine has {machine:.0f}; offload less (engine.deepspeed.offload_optimizer), or use other "
            "hardware (docs/scaling.md)"
        )
    room = gpu_gib(config)
    if room is None or not shapes:
        return
    min_gib = peak_gib(config, shapes, gpu_gib=room, is_least=True)
    if min_gib > room:
        raise CapacityError(
            f"engine: agents of {billions} billion parameters need at least {min_gib:.1f} GiB of GPU memory, but the "
            f"GPU has {room:.1f}; {_remedy(config, shapes, room)}"
        )
    memory = memory_of_agents(config, shapes, gpu_gib=room)
    updating = max(used_gib(config, memory, lambda needs: needs.updating).values())
    if updating > room - MARGIN_GIB:
        warn_once(
            f"agents of {billions} billion parameters may run out of memory: full passes need up to {updating:.1f} "
            f"GiB, and a plan leaves {MARGIN_GIB:g} of the GPU's {room:.1f} free; lower engine.micro_batch_tokens, or "
            "set engine.gradient_checkpointing=true"
        )


def _remedy(config: ExperimentConfig, shapes: Mapping[str, ModelShape], room: float) -> str:
    current_share = config.engine.vllm.memory_share
    if config.engine.sampler == "vllm" and current_share != AUTO:
        share = max_memory_share(config, shapes, gpu_gib=room)
        if peak_gib(_with_share(config, share), shapes, gpu_gib=room, is_least=True) <= room:
            return f"vLLM takes {current_share} of it; set engine.vllm.memory_share=auto, which gives {share} here"
    return "use other hardware (docs/scaling.md), offload the optimizer, or train adapters (engine.lora)"


def host_gib(config: ExperimentConfig, shapes: Mapping[str, ModelShape]) -> float:
    """Host memory of offloaded optimizers, in GiB, if all agents share a machine.

    Bytes per trained weight with engine.deepspeed.offload_optimizer: masters 4, moments 8, gradients 4 + 2, weights 2.
    """
    offloads = config.engine.learner == "deepspeed" and config.engine.deepspeed.offload_optimizer
    return sum(20 * num_trained(config, shape) for shape in shapes.values()) / GIB if offloads else 0.0


EQUAL_RATES_SIZE = 4e9
"""parameters of a model for which a GPU's sampling and training rates are equal; assumed: sampling was not measured"""


def with_ranks(config: ExperimentConfig, parameters: Mapping[str, int]) -> ExperimentConfig:
    """The configuration with the ranks of `placement.num_ranks: auto` assigned to agents.

    All agents wait for the slowest, so each further rank goes to the agent whose step takes longest. A single agent
    gets half of `placement.total_ranks`, so that two such experiments fill a machine.

    Args:
        config: a valid configuration.
        parameters: number of parameters of each agent's model; if one is unknown, all agents count equally.
    """
    sharers, agents, total = sharing_agents(config), config.pair.agents, config.placement.total_ranks
    if not sharers:
        return config
    assert total is not None, "validate() requires total_ranks for auto"
    is_known = all(k in parameters for k in sharers)
    cost = {k: step_cost(config, parameters[k]) if is_known else 1.0 for k in sharers}
    ranks = dict.fromkeys(sharers, 1)
    for _ in range(total - sum(agent.num_ranks or 0 for agent in agents.values()) - len(sharers)):
        ranks[max(sharers, key=lambda k: cost[k] / ranks[k])] += 1
    if len(agents) == 1:
        ranks = {k: max(1, total // 2) for k in sharers}
    placed = {k: replace(agent, num_ranks=ranks.get(k, agent.num_ranks)) for k, agent in agents.items()}
    return replace(config, pair=replace(config.pair, agents=placed))


def step_cost(config: ExperimentConfig, parameters: int) -> float:
    """Device time of an agent's step, as a multiple of the time to sample it with `EQUAL_RATES_SIZE` parameters, N0.

        cost(N) = sqrt(N / N0) + tokens trained on / tokens sampled * N / N0

    It scales with the model's size as the rates of `flows.grids.estimate` do.
    """
    relative_size = parameters / EQUAL_RATES_SIZE
    trained_per_sampled = num_sources(config) * int(config.method.build.num_iterations)
    return math.sqrt(relative_size) + trained_per_sampled * relative_size
