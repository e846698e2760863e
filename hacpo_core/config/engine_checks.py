"""Contradictions between the fields of engines and placement, each a sentence: field, value, remedy."""

from collections.abc import Iterator

from hacpo_core.config.agents import MAX_LAYERS
from hacpo_core.config.counts import num_gpus, num_ranks, sharing_agents
from hacpo_core.config.engine import AUTO
from hacpo_core.config.samplers import sampler_of
from hacpo_core.config.schema import ExperimentConfig


def engine_problems(config: ExperimentConfig) -> Iterator[str]:
    """What is wrong with the sampler, ranks and GPUs, adapters and DeepSpeed."""
    reason = sampler_of(config.engine).why_unfit(config)
    if reason is not None:
        yield reason
    threads, layers = config.engine.num_threads, config.engine.gradient_checkpointing
    if threads != AUTO and not (isinstance(threads, int) and 1 <= threads <= 4096):
        yield f"engine.num_threads: got {threads!r}, expected {AUTO} or a whole number in [1, 4096]"
    if layers != AUTO and (isinstance(layers, str) or not 0 <= layers <= MAX_LAYERS):
        yield (
            f"engine.gradient_checkpointing: got {layers!r}, expected {AUTO}, true, false or a number of layers in "
            f"[0, {MAX_LAYERS}]"
        )
    if layers == AUTO and config.engine.device == "cpu":
        yield f"engine.gradient_checkpointing: got {AUTO} with engine.device=cpu; set true or false"
    yield from _placement_problems(config)
    yield from _lora_problems(config)


def _placement_problems(config: ExperimentConfig) -> Iterator[str]:
    placement = config.placement
    if placement.num_ranks != AUTO and not (isinstance(placement.num_ranks, int) and 1 <= placement.num_ranks <= 4096):
        yield f"placement.num_ranks: got {placement.num_ranks!r}, expected {AUTO} or a whole number in [1, 4096]"
    sharers = sharing_agents(config)
    if sharers:
        yield from _shared_rank_problems(config, len(sharers))
    for name in config.pair.agents:
        ranks = 1 if name in sharers else num_ranks(config, name)
        if ranks > 1 and placement.kind != "ray":
            yield f"placement.num_ranks: got {ranks} for {name} in one process; set placement.kind=ray"
        if ranks > 1 and config.engine.learner != "deepspeed":
            yield (
                f"placement.num_ranks: got {ranks} for {name}, but engine.learner is {config.engine.learner}, which "
                "trains in one process; set engine.learner=deepspeed"
            )
    if placement.kind == "ray" and placement.colocated and num_gpus(config) > 1:
        yield (
            f"engine.vllm.tensor_parallel_size: got {num_gpus(config)} with placement.colocated=true, where "
            "each rank gets a share of a single GPU; set it to 1, or placement.colocated=false"
        )


def _shared_rank_problems(config: ExperimentConfig, num_sharers: int) -> Iterator[str]:
    placement = config.placement
    if placement.kind != "ray" or config.engine.learner != "deepspeed":
        yield (
            f"placement.num_ranks: got {AUTO} with placement.kind={placement.kind} and engine.learner="
            f"{config.engine.learner}; set placement.kind=ray and engine.learner=deepspeed, or a number"
        )
    if placement.colocated:
        yield (
            f"placement.num_ranks: got {AUTO} with placement.colocated=true, where all agents use the same GPUs; set a "
            "number"
        )
    min_ranks = num_sharers + sum(agent.num_ranks or 0 for agent in config.pair.agents.values())
    if placement.total_ranks is None or placement.total_ranks < min_ranks:
        yield (
            f"placement.total_ranks: got {placement.total_ranks} with placement.num_ranks={AUTO}, expected at least "
            f"{min_ranks}, one for each agent; set it to the number of GPUs"
        )


def _lora_problems(config: ExperimentConfig) -> Iterator[str]:
    rank = config.engine.lora.rank
    if rank and config.engine.learner == "deepspeed":
        yield f"engine.lora.rank: got {rank} with engine.learner=deepspeed; set engine.learner=torch"
