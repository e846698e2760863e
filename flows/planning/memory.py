"""Estimate of the GPU memory that training needs, from model shapes and the configuration.

Bytes per trained weight: the size of dtype for the weight and again for its gradient; 8 for AdamW's two moments; in
bfloat16, 4 more for the master weight and 4 for its gradient. DeepSpeed always copies gradients to fp32 for the step;
in bfloat16 it makes one more copy in bfloat16. ZeRO shards over the ranks: optimizer states and the copies for the
step, and at stage 2 gradients, which it accumulates in 4 bytes a weight. The backward pass of the output embedding
holds its gradient in fp32, and in bfloat16 a second time. With DeepSpeed's optimizer offloaded, it keeps a buffer for
the largest gradient. Each process has a CUDA context; a learner after an update and an engine that sleeps hold memory
of their own.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import checkpointing, has_reference, longest_sequence, num_ranks, recomputed_layers
from hacpo_core.config.samplers import sampler_of
from hacpo_core.engines.deepspeed.settings import MAX_BUCKET
from hacpo_core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

GIB = 2**30
AFTER_UPDATE_GIB = 1.5
"""memory that a learner still holds after an update, beside weights and optimizer; measured on an H200"""
CONTEXT_GIB = 0.5
"""CUDA context of a process; an assumption"""
NCCL_GIB = 0.5
"""buffers of NCCL's channels between an agent's ranks; an assumption"""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model that determine its memory; widths in elements, `query_width` and `kv_width` over all heads."""

    num_parameters: int
    num_layers: int
    hidden_size: int
    query_width: int
    kv_width: int
    intermediate_size: int
    vocab_size: int


def model_shape(config: PretrainedConfig) -> ModelShape:
    """Shape of a transformers configuration; parameters are counted on the meta device."""
    import torch  # slow to import, and most plans do not need these functions
    from transformers import AutoModelForCausalLM

    text: Any = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        num_parameters=sum(p.numel() for p in model.parameters()),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        query_width=head * text.num_attention_heads,
        kv_width=head * (getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocab_size=text.vocab_size,
    )


@cache
def folder_shape(folder: Path) -> ModelShape:
    """Shape of the model in a folder.

    Raises:
        ModelError: its config.json cannot be read.
    """
    from transformers import AutoConfig

    try:
        return model_shape(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder}: config.json cannot be read ({error}); copy or save the model again") from error


def sizes_of(shapes: Mapping[str, ModelShape]) -> dict[str, int]:
    """Number of parameters of each model."""
    return {name: shape.num_parameters for name, shape in shapes.items()}


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """Memory of one process of an agent on its GPU, in GiB.

    `sampler` is the KV cache and the copy of the weights, if it has one; `asleep` is what it holds while it sleeps.
    `optimizer` includes sums of gradients that it keeps. `activations` include logits. `reference` is the frozen
    initial model for the KL term. `weights` are the learner's. `always`
    is held whatever the agent does: buffers, and the contexts of processes of its own.
    """

    weights: float
    reference: float
    gradients: float
    optimizer: float
    activations: float
    sampler: float
    asleep: float
    always: float

    @property
    def updating(self) -> float:
        """Memory during the agent's updates."""
        learner = self.weights + self.reference + self.gradients + self.optimizer + self.activations
        return learner + self.asleep + self.always

    @property
    def sampling(self) -> float:
        """Memory while the agent samples."""
        return self.weights + self.reference + self.sampler + self.always + self.optimizer

    @property
    def resting(self) -> float:
        """Memory while another agent uses the GPU."""
        return self.weights + self.reference + self.optimizer + self.asleep + self.always


def agent_memory(
    config: ExperimentConfig,
    shape: ModelShape,
    *,
    ranks: int,
    gpu_gib: float,
    num_recomputed: int | None = None,
    is_least: bool = False,
) -> AgentMemory:
    """Memory that an agent needs on each of its GPUs.

    Args:
        config: the experiment's.
        shape: of the agent's model.
        ranks: processes of the agent, one GPU each.
        gpu_gib: memory of one GPU in GiB, of which a sampler may take a share.
        num_recomputed: layers whose activations are recomputed; None: as `engine.gradient_checkpointing` says.
        is_least: the minimum, with one response at a time; False: the maximum, with all responses at the limit. A
            sampler with a share takes it in either case; one that is still auto counts as the minimum.
    """
    engine = config.engine
    width, weights = _width(config), _width(config) * shape.num_parameters
    learner = _learner_bytes(config, shape, ranks)
    if num_recomputed is None:
        num_recomputed = recomputed_layers(engine.gradient_checkpointing, shape.num_layers)
    kind = sampler_of(engine)
    sampler = kind.device_bytes(
        engine,
        weights=weights,
        response=longest_sequence(config) * 2 * shape.num_layers * shape.kv_width * width,
        num_responses=1 if is_least else config.rollout.batch_size,
        gpu=gpu_gib * GIB,
    )
    return AgentMemory(
        weights=learner.weights / GIB,
        reference=weights / GIB if has_reference(config) and engine.lora.rank == 0 else 0.0,
        gradients=learner.gradients / GIB,
        optimizer=learner.optimizer / GIB,
        activations=_update_bytes(config, shape, ranks, num_recomputed, is_least=is_least) / GIB,
        sampler=sampler / GIB,
        asleep=kind.asleep_gib(engine),
        always=_always_bytes(config, shape, ranks) / GIB,
    )


def _width(config: ExperimentConfig) -> int:
    """Bytes of a weight."""
    return 4 if config.engine.dtype == "float32" else 2


@dataclass(frozen=True, slots=True)
class _LearnerBytes:
    weights: float
    gradients: float
    optimizer: float


def _learner_bytes(config: ExperimentConfig, shape: ModelShape, ranks: int) -> _LearnerBytes:
    """What the learner's tensors of each weight take on one rank."""
    engine, width = config.engine, _width(config)
    is_bf16, is_deepspeed = width == 2, engine.learner == "deepspeed"
    stage = engine.deepspeed.stage if is_deepspeed else 0
    total, trained = shape.num_parameters, num_trained(config, shape)
    sums_in_fp32 = is_deepspeed and is_bf16  # with torch, sums in fp32 are the copy for the step
    gradients: float = (4 if sums_in_fp32 else width) * trained / _ranks(2, stage, ranks)
    optimizer: float = (12 if is_bf16 else 8) * trained / _ranks(1, stage, ranks)
    if is_deepspeed and engine.deepspeed.offload_optimizer:
        optimizer = 0.0
    elif sums_in_fp32 and stage == 1:  # the optimizer keeps the sums, and its step reads a part of them
        optimizer, gradients = optimizer + gradients, 0.0
    else:
        copies = (4 if is_bf16 or is_deepspeed else 0) + (width if is_bf16 and is_deepspeed else 0)
        gradients += copies * trained / _ranks(1, stage, ranks)
    return _LearnerBytes(width * total, gradients, optimizer)


def _ranks(first_stage: int, stage: int, ranks: int) -> int:
    """Ranks among which something is divided that ZeRO shards from a stage on."""
    return ranks if stage >= first_stage else 1


def _update_bytes(
    config: ExperimentConfig, shape: ModelShape, ranks: int, num_recomputed: int, *, is_least: bool
) -> float:
    """Bytes of the activations, logits, head and exchanged gradients of a pass that trains."""
    engine, rollout = config.engine, config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    tokens = longest if is_least else max(longest, engine.micro_batch_tokens)
    max_places = 0 if is_least or engine.row_layout == "padded" else engine.max_places * engine.micro_batch_tokens
    places = max(1.0, max_places / tokens)
    activations = tokens * _activation_bytes(shape, _width(config), num_recomputed, places=places)
    # DeepSpeed's bucket in the type that ranks exchange, and the gradients that are pending or on their way from it.
    width = 4 if engine.deepspeed.stage == 1 else _width(config)
    bucket = 2 * width * min(MAX_BUCKET, num_trained(config, shape)) if ranks > 1 else 0.0
    return activations + 3 * engine.logprob_chunk_mb * 2**20 + _head_bytes(config, shape) + bucket


def _always_bytes(config: ExperimentConfig, shape: ModelShape, ranks: int) -> float:
    """Bytes on the GPU beside the agent's tensors, whatever it does."""
    engine = config.engine
    if engine.device == "cpu":
        return 0.0
    num_contexts = (config.placement.kind == "ray") + (not sampler_of(engine).shares_weights)
    always = (AFTER_UPDATE_GIB + num_contexts * CONTEXT_GIB) * GIB
    if engine.learner == "deepspeed" and engine.deepspeed.offload_optimizer:
        max_buffer = shape.hidden_size * max(shape.vocab_size, shape.query_width, shape.intermediate_size)
        always += _width(config) * max_buffer  # temp_grad_buffer_for_gpu_offload
    if ranks > 1:
        always += NCCL_GIB * GIB
    return always


def _head_bytes(config: ExperimentConfig, shape: ModelShape) -> float:
    """Bytes of the output embedding's gradient while it is accumulated."""
    is_bf16, is_trained = config.engine.dtype != "float32", config.engine.lora.rank == 0
    copies = 4 + (2 if is_bf16 else 0) if is_trained else 0
    return copies * shape.vocab_size * shape.hidden_size


def _activation_bytes(shape: ModelShape, width: int, num_recomputed: int, places: float = 1.0) -> float:
    """Bytes per token saved for the backward pass: the tensors that autograd saves in Qwen3's layers, as measured.

    Of the first layers, which are recomputed, only the inputs are saved. They are recomputed one at a time, after the
    backward pass has freed what the other layers saved.
    """
    num_saved = max(shape.num_layers - num_recomputed, 1)
    return num_saved * _layer_bytes(shape, width, places) + num_recomputed * width * shape.hidden_size


def _layer_bytes(shape: ModelShape, width: int, places: float) -> float:
    """Of a token; attention keeps queries, keys, values and results for each of its places, see `max_places`."""
    heads = shape.query_width + shape.kv_width
    attended = 2 * width * places * heads
    if width == 2:  # norms are computed and saved in fp32
        return 16 * shape.hidden_size + 8 * shape.intermediate_size + 6 * heads + attended
    return 24 * shape.hidden_size + 16 * shape.intermediate_size + 8 * heads + attended


def num_trained(config: ExperimentConfig, shape: ModelShape) -> float:
    """Number of trained parameters: all, or those of the adapters."""
    rank = config.engine.lora.rank
    if rank == 0:
        return shape.num_parameters
    d, q, k, f = shape.hidden_size, shape.query_width, shape.kv_width, shape.intermediate_size
    return rank * shape.num_layers * (2 * (d + q) + 2 * (d + k) + 3 * (d + f))


def peak_gib(config: ExperimentConfig, shapes: Mapping[str, ModelShape], *, gpu_gib: float, is_least: bool) -> float:
    """Peak memory of the fullest GPU, in GiB. Of the agents that share a GPU, one works and the others rest.

    Args:
        config: the experiment's.
        shapes: of all its agents.
        gpu_gib: memory of one GPU in GiB.
        is_least: see `agent_memory`.
    """
    memory = memory_of_agents(config, shapes, gpu_gib=gpu_gib, is_least=is_least)
    return max(used_gib(config, memory, lambda needs: max(needs.updating, needs.sampling)).values())


def memory_of_agents(
    config: ExperimentConfig, shapes: Mapping[str, ModelShape], *, gpu_gib: float, is_least: bool = False
) -> dict[str, AgentMemory]:
    """`agent_memory` of each agent, with its ranks and its recomputed layers; the arguments are those of `peak_gib`."""
    return {
        agent: agent_memory(
            config,
            shape,
            ranks=num_ranks(config, agent),
            gpu_gib=gpu_gib,
            num_recomputed=recomputed_layers(checkpointing(config, agent), shape.num_layers),
            is_least=is_least,
        )
        for agent, shape in shapes.items()
    }


def shares_gpu(config: ExperimentConfig) -> bool:
    """Whether all agents use the same GPU, one at a time."""
    return config.placement.kind == "local" or config.placement.colocated


def used_gib(
    config: ExperimentConfig, memory: Mapping[str, AgentMemory], busy: Callable[[AgentMemory], float]
) -> dict[str, float]:
    """Memory in use on a GPU while an agent works there, by agent, in GiB; agents in one process share a CUDA context.

    Args:
        config: the experiment's.
        memory: of each agent.
        busy: what the agent that works takes.
    """
    resting = {
        agent: sum(other.resting for j, other in memory.items() if j != agent) if shares_gpu(config) else 0.0
        for agent in memory
    }
    context = CONTEXT_GIB if config.placement.kind == "local" and config.engine.device != "cpu" else 0.0
    return {agent: context + busy(needs) + resting[agent] for agent, needs in memory.items()}


def gpu_gib(config: ExperimentConfig) -> float | None:
    """Memory of one GPU in GiB: the smaller of the configured value and that of the GPU here; None on the CPU or if
    neither is known.
    """
    if config.engine.device == "cpu":
        return None
    sizes = [config.engine.gpu_memory_gb, min_gpu_gib()]
    return min((size for size in sizes if size is not None), default=None)


@cache
def min_gpu_gib() -> float | None:
    """Memory of the smallest NVIDIA GPU here, in GiB. Does not call CUDA, which would fix the visible devices."""
    return min((int(line) / 1024 for line in nvidia_smi("memory.total") if line.isdigit()), default=None)


def nvidia_smi(fields: str) -> list[str]:
    """A line of nvidia-smi for each GPU, with these fields; none where it does not work."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


@cache
def published_models() -> dict[str, dict[str, str]]:
    """Shape fields of each model of the paper, by hub name."""
    text = (files("experiments") / "published" / "model_shapes.csv").read_text(encoding="utf-8")
    return {row.pop("model"): row for row in csv.DictReader(text.splitlines())}


@cache
def published_shape(name: str) -> ModelShape:
    """Shape of a model of the paper."""
    from transformers import AutoConfig  # importing takes two seconds, and other models do not need it

    fields = dict(published_models()[name])
    kind = fields.pop("model_type")
    return model_shape(AutoConfig.for_model(kind, **{field: json.loads(value) for field, value in fields.items()}))


def published_shapes(config: ExperimentConfig) -> dict[str, ModelShape]:
    """Shapes of an experiment's agents that are models of the paper, by agent name."""
    agents = config.pair.agents.items()
    return {k: published_shape(agent.path) for k, agent in agents if agent.path in published_models()}
