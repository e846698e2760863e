"""Contradictions between the fields of engines and placement."""

from __future__ import annotations

from hacpo_core.config.agents import MAX_LAYERS
from hacpo_core.config.counts import num_gpus, num_ranks, sharing_agents
from hacpo_core.config.engine import ALL_LINEAR, AUTO
from hacpo_core.config.samplers import sampler_of
from hacpo_core.config.schema import ExperimentConfig
from hacpo_core.errors import ConfigError


def check_engines(config: ExperimentConfig) -> None:
    """Check the sampler, ranks and GPUs, adapters and DeepSpeed.

    Raises:
        ConfigError: one sentence that names the field, the value, what is expected and the remedy.
    """
    reason = sampler_of(config.engine).why_unfit(config)
    if reason is not None:
        raise ConfigError(reason)
    _check_threads(config)
    _check_checkpointing(config)
    _check_placement(config)
    _check_lora(config)
    _check_deepspeed(config)


def _check_threads(config: ExperimentConfig) -> None:
    threads = config.engine.num_threads
    if threads != AUTO and not (isinstance(threads, int) and 1 <= threads <= 4096):
        raise ConfigError(f"engine.num_threads: got {threads!r}, expected {AUTO} or a whole number in [1, 4096]")


def _check_checkpointing(config: ExperimentConfig) -> None:
    checkpointing = config.engine.gradient_checkpointing
    if checkpointing != AUTO and (isinstance(checkpointing, str) or not 0 <= checkpointing <= MAX_LAYERS):
        raise ConfigError(
            f"engine.gradient_checkpointing: got {checkpointing!r}, expected {AUTO}, true, false or a number of layers "
            f"in [0, {MAX_LAYERS}]"
        )
    if checkpointing == AUTO and config.engine.device == "cpu":
        raise ConfigError(
            f"engine.gradient_checkpointing: got {AUTO} with engine.device=cpu, for which it is not decided; set true "
            "or false"
        )


def _check_placement(config: ExperimentConfig) -> None:
    configured_ranks = config.placement.num_ranks
    if configured_ranks != AUTO and not (isinstance(configured_ranks, int) and 1 <= configured_ranks <= 4096):
        raise ConfigError(
            f"placement.num_ranks: got {configured_ranks!r}, expected {AUTO} or a whole number in [1, 4096]"
        )
    sharers = sharing_agents(config)
    if sharers:
        _check_shared_ranks(config, len(sharers))
    for name in config.pair.agents:
        if name in sharers:
            continue
        ranks = num_ranks(config, name)
        if ranks > 1 and config.placement.kind != "ray":
            raise ConfigError(f"placement.num_ranks: got {ranks} for {name} in one process; set placement.kind=ray")
        if ranks > 1 and config.engine.learner != "deepspeed":
            raise ConfigError(
                f"placement.num_ranks: got {ranks} for {name}, but engine.learner is {config.engine.learner}, which "
                "trains in one process; set engine.learner=deepspeed"
            )
    if config.placement.kind == "ray" and config.placement.colocated and num_gpus(config) > 1:
        raise ConfigError(
            f"{sampler_of(config.engine).num_gpus_field}: got {num_gpus(config)} with placement.colocated=true, where "
            "each rank gets a share of a single GPU; set it to 1, or placement.colocated=false"
        )


def _check_shared_ranks(config: ExperimentConfig, num_sharers: int) -> None:
    placement = config.placement
    if placement.kind != "ray" or config.engine.learner != "deepspeed":
        raise ConfigError(
            f"placement.num_ranks: got {AUTO} with placement.kind={placement.kind} and engine.learner="
            f"{config.engine.learner}; set placement.kind=ray and engine.learner=deepspeed, or a number"
        )
    if placement.colocated:
        raise ConfigError(
            f"placement.num_ranks: got {AUTO} with placement.colocated=true, where all agents use the same GPUs; set a "
            "number"
        )
    min_ranks = num_sharers + sum(agent.num_ranks or 0 for agent in config.pair.agents.values())
    if placement.total_ranks is None or placement.total_ranks < min_ranks:
        raise ConfigError(
            f"placement.total_ranks: got {placement.total_ranks} with placement.num_ranks={AUTO}, expected at least "
            f"{min_ranks}, one for each agent; set it to the number of GPUs"
        )


def _check_deepspeed(config: ExperimentConfig) -> None:
    deepspeed = config.engine.deepspeed
    if config.engine.learner != "deepspeed":
        return
    if config.engine.offloads:
        raise ConfigError(
            "engine.offloads: got true with engine.learner=deepspeed, which has its own setting for offloading; set "
            "engine.deepspeed.offload_optimizer=true instead"
        )
    if deepspeed.offload_optimizer and deepspeed.stage == 0:
        raise ConfigError(
            "engine.deepspeed.offload_optimizer: got true at stage 0, which cannot offload the optimizer; set "
            "engine.deepspeed.stage to 1, 2 or 3"
        )
    is_wide = config.engine.grad_dtype == "float32" and config.engine.dtype != "float32"
    if is_wide and deepspeed.stage == 0:
        raise ConfigError(
            "engine.grad_dtype: got float32 at engine.deepspeed.stage=0, where DeepSpeed sums gradients in "
            "engine.dtype; set stage 1, 2 or 3"
        )
    if config.engine.compile and deepspeed.stage == 3:
        raise ConfigError(
            "engine.compile: got true at engine.deepspeed.stage=3, which gathers the weights of each layer in "
            "hooks that cannot be compiled; set it to false, or stage 0, 1 or 2"
        )
    if deepspeed.offload_parameters and deepspeed.stage != 3:
        raise ConfigError(
            f"engine.deepspeed.offload_parameters: got true at stage {deepspeed.stage}, which keeps all weights on "
            "every device; set engine.deepspeed.stage=3"
        )


def _check_lora(config: ExperimentConfig) -> None:
    lora = config.engine.lora
    targets = list(lora.targets)
    if lora.rank == 0:
        return
    if not targets or (ALL_LINEAR in targets and len(targets) > 1):
        raise ConfigError(
            f"engine.lora.targets: got {targets}, expected names of layers, or only {ALL_LINEAR}; set one of these"
        )
    if config.engine.learner == "deepspeed":
        raise ConfigError(
            f"engine.lora.rank: got {lora.rank} with engine.learner=deepspeed, which does not support adapters; set "
            "engine.learner=torch"
        )
