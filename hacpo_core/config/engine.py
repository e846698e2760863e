"""Sections of the configuration about engines and their places: what samples, what trains, on what, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hacpo_core.config.fields import either, setting, unless, when

AUTO = "auto"
"""value of placement.num_ranks that a plan replaces by numbers"""
ALL_LINEAR = "all-linear"
"""value of engine.lora.targets: every linear layer but the output embedding"""


@dataclass(frozen=True)
class VllmConfig:
    """vLLM's offline engine, one per agent; `rollout.batch_size` is the number of responses it works on at a time."""

    process: str = setting(
        "shared",
        "where the engine runs",
        choices={
            "shared": "in the agent's process, weights handed over in memory",
            "own": "in processes of its own, weights handed over by safetensors",
        },
        identity=False,
    )
    memory_share: float = setting(
        0.4,
        "share of a device's memory (of the machine's on the CPU) for one agent's weights and cache",
        above=0,
        at_most=1,
        identity=False,
    )
    kv_cache_gb: float | None = setting(
        None, "cache of keys and values; null: what memory_share leaves", unit="GiB", above=0, identity=False
    )
    tensor_parallel_size: int = setting(
        1, "devices that one agent's engine is spread over; over 1 takes process=own", at_least=1, at_most=1024
    )
    max_model_tokens: int | None = setting(
        None,
        "longest prompt and response together; null: rollout.max_prompt_tokens and the longest response limit",
        unit="tokens",
        at_least=2,
    )
    enforce_eager: bool = setting(False, "no compilation and no CUDA graphs: starts sooner, samples slower")
    prefix_caching: bool = setting(True, "encode a prompt that several responses share once")
    sleeps: bool = setting(
        True,
        "give device memory back between samplings, so that the learner can have it",
        identity=False,
        inert=when("engine.device", "cpu", note=", where vLLM does not sleep"),
    )
    sync_tokens: int = setting(
        256,
        "least number of tokens whose log-probabilities are compared with the learner's after each hand-over of "
        "weights",
        unit="tokens",
        at_least=1,
        identity=False,
    )
    sync_tolerance: float = setting(
        1e-3,
        "largest mean difference of these log-probabilities; a larger one stops the run. bfloat16 needs more",
        unit="nats",
        above=0,
        identity=False,
    )
    sync_bound: float = setting(
        2.0, "largest difference of a single token; a larger one stops the run", unit="nats", above=0, identity=False
    )


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: alpha / rank * B A is added to a weight, and nothing but A and B is trained."""

    rank: int = setting(0, "rank of every adapter; 0: no adapters, all weights are trained", at_least=0, at_most=1e5)
    alpha: float = setting(32.0, "scale of the adapters", above=0, at_most=1e6, inert=when("engine.lora.rank", 0))
    targets: list[str] = setting(
        lambda: [ALL_LINEAR],
        f"names of layers, such as q_proj; {ALL_LINEAR} alone: every linear layer but the output embedding",
        inert=when("engine.lora.rank", 0),
    )


@dataclass(frozen=True)
class DeepspeedConfig:
    """DeepSpeed's engine, one per agent: what is divided among the ranks (processes, one device each) that train it."""

    stage: int = setting(
        2,
        "ZeRO stage",
        choices={
            0: "every rank holds all",
            1: "the optimizer and the fp32 weights are divided",
            2: "gradients too",
            3: "weights too",
        },
    )
    offload_optimizer: bool = setting(
        False,
        "keep the optimizer's state and the master weights in the machine's memory and step there; stages 1-3",
        identity=False,
    )
    offload_parameters: bool = setting(
        False, "keep the divided weights in the machine's memory; stage 3", identity=False
    )
    timeout_s: float = setting(
        3600.0,
        "longest wait of an agent's ranks for each other, such as for one that still loads or samples longer responses",
        unit="s",
        above=0,
        identity=False,
    )


_ON_CPU = when("engine.device", "cpu")


@dataclass(frozen=True)
class EngineConfig:
    """What samples and what trains, and on what."""

    sampler: str = setting(
        "transformers",
        "what samples",
        choices={"transformers": "the learner's own weights", "vllm": "an engine beside the learner"},
    )
    vllm: VllmConfig = setting(VllmConfig, "vLLM's engine", inert=unless("engine.sampler", "vllm"))
    learner: str = setting(
        "torch", "what trains", choices={"torch": "AdamW on one device", "deepspeed": "on one device or several"}
    )
    deepspeed: DeepspeedConfig = setting(
        DeepspeedConfig, "DeepSpeed's engine", inert=unless("engine.learner", "deepspeed")
    )
    lora: LoraConfig = setting(LoraConfig, "low-rank adapters")
    device: str = setting(
        "cpu",
        "device of a process",
        choices={"cpu": "", "cuda": "the first GPU that the process sees"},
        remedy="CUDA_VISIBLE_DEVICES chooses the GPU",
    )
    gpu_memory_gb: float | None = setting(
        None,
        "memory of one GPU; what cannot fit is refused before it starts. null: as the GPU here says, which counts also "
        "where it has less",
        unit="GiB",
        above=0,
        identity=False,
        inert=_ON_CPU,
    )
    host_memory_gb: float | None = setting(
        None,
        "memory of a machine that has the GPUs; what cannot fit is refused before it starts. null: as the machine here "
        "says, where it has a GPU",
        unit="GiB",
        above=0,
        identity=False,
        inert=_ON_CPU,
    )
    dtype: str = setting(
        "float32",
        "type of the weights that are multiplied",
        choices={"float32": "", "bfloat16": "with fp32 master weights and an fp32 log-softmax"},
    )
    head_dtype: str = setting(
        "same",
        "type of the output embedding's product, in learner and sampler",
        choices={"same": "as dtype", "float32": ""},
        inert=when("engine.dtype", "float32", note=" anyway"),
    )
    grad_dtype: str = setting(
        "same",
        "type of the sum of gradients over an update's passes",
        choices={"same": "as dtype", "float32": "2 bytes a weight more in bfloat16"},
        inert=when("engine.dtype", "float32", note=" anyway"),
    )
    num_threads: int = setting(1, "CPU threads of a process; another number gives other bits", at_least=1, at_most=4096)
    micro_batch_tokens: int = setting(
        16384, "most tokens (padding included) in one forward and backward pass", unit="tokens", at_least=1
    )
    row_layout: str = setting(
        "auto",
        "how rows lie in a pass",
        choices={
            "padded": "side by side",
            "shared_prompts": "one after another, a problem's prompt only once",
            "auto": "shared_prompts for models that can",
        },
    )
    logprob_chunk_mb: int = setting(
        64, "one chunk's fp32 logits; up to three such buffers exist at the same time", unit="MiB", at_least=1
    )
    gradient_checkpointing: bool = setting(False, "compute activations anew in the backward pass, to save memory")
    offloads: bool = setting(
        False,
        "keep optimizer state and master weights in host memory, but for updates; weights too while others have a turn",
        identity=False,
        inert=when("engine.device", "cpu", note=", whose memory is the host's"),
    )
    deterministic: bool = setting(
        False,
        "on CUDA: kernels that repeat themselves to the bit where there are such, slower; replays must then be exact",
        inert=when("engine.device", "cpu", note=", which repeats itself to the bit anyway"),
    )
    speedups: bool = setting(
        True,
        "decoding, products and attention of our own where they are faster; false: public torch and transformers alone",
        added_later=True,
    )
    skip_zero_advantage: bool = setting(
        True,
        "leave rows without advantage out of the update's passes: same gradient, ratio statistics over the others only",
    )


_NOT_RAY = unless("placement.kind", "ray")


def _all_have_ranks(_: Any, config: Any) -> str | None:
    has_own = [agent.num_ranks is not None for agent in config.pair.agents.values()]
    return "every agent has a number of its own" if all(has_own) else None


def _is_alone(_: Any, config: Any) -> str | None:
    return "one agent has no partner to share devices with" if len(config.pair.agents) == 1 else None


@dataclass(frozen=True)
class RayConfig:
    """Which Ray cluster, and how patient with it."""

    address: str | None = setting(
        None,
        "host:port of a running cluster, or auto: the one that this machine belongs to; null: Ray is started here, for "
        "this run alone",
    )
    timeout_s: float = setting(
        120.0,
        "longest wait for the cluster's answer and for an agent's processes to be placed",
        unit="s",
        above=0,
        at_most=86400,
    )


@dataclass(frozen=True)
class PlacementConfig:
    """Where agents live."""

    kind: str = setting(
        "local",
        "where agents live",
        choices={
            "local": "in this process, taking turns",
            "ray": "each agent in processes of its own, side by side",
        },
        identity=False,
    )
    num_ranks: int | str = setting(
        1,
        "processes of one agent; over 1 they sample shares of the problems, and train as DeepSpeed's ranks. auto: the "
        "agents' shares of total_ranks, in proportion to their parameters; an agent that trains alone gets half of "
        "them",
        identity=False,
        inert=_all_have_ranks,
    )
    total_ranks: int | None = setting(
        None,
        "processes of all agents together, num_ranks: auto; on one machine as many as it has GPUs",
        at_least=1,
        at_most=4096,
        identity=False,
        inert=either(_all_have_ranks, unless("placement.num_ranks", AUTO, note=", not auto")),
    )
    colocated: bool = setting(
        False,
        "all agents on the same devices, taking turns",
        identity=False,
        inert=either(_NOT_RAY, _is_alone),
    )
    ray: RayConfig = setting(RayConfig, "Ray's cluster", identity=False, inert=_NOT_RAY)
