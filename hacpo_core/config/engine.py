"""Sections of the configuration about engines and placement: sampling and training engines, devices, processes."""

from dataclasses import dataclass

from hacpo_core.config.fields import setting, unless, when

AUTO = "auto"
"""value of placement.num_ranks and a sampler's share of a GPU that planning replaces by numbers, and of num_threads"""
START_LIMIT_S = 1800.0
"""longest wait for vLLM to start, and for a Ray cluster to answer and to place an agent's processes: a cold machine
compiles kernels for many minutes"""
RANKS_LIMIT_S = 3600.0
"""longest time that an agent's ranks wait for each other, such as while one still loads or samples"""


@dataclass(frozen=True)
class VllmConfig:
    """vLLM's offline engine, one per agent, in processes of its own. `rollout.batch_size` is its number of concurrent
    responses. On a GPU it sleeps between rollouts. Weights are passed through shared memory, one part after another.
    """

    memory_share: int | float | str = setting(
        0.4,
        "share of a GPU's memory (on the CPU: of the machine's) for one agent's weights and KV cache, above 0 and at "
        "most 1. auto: the largest that leaves room for all else on the GPU, computed when the experiment is planned; "
        "with device=cuda only",
        identity=False,
    )
    kv_cache_gb: float | None = setting(
        None, "size of the KV cache; null: the rest of memory_share", unit="GiB", above=0, identity=False
    )
    tensor_parallel_size: int = setting(1, "devices of one agent's engine", at_least=1, at_most=1024)
    enforce_eager: bool = setting(False, "disable compilation and CUDA graphs: shorter start-up, slower sampling")
    quantization: str | None = setting(
        None,
        "quantization of the engine's weights as it loads them; null: none",
        choices={"fp8": "weights and inputs of linear layers in 8 bits, on GPUs: faster, and farther from the learner"},
    )
    sync_tolerance: float = setting(
        1e-3,
        "largest mean difference between vLLM's and the learner's log-probabilities of 256 tokens after each weight "
        "transfer; a larger one stops the run. Raise it for bfloat16 and fp8",
        unit="nats",
        above=0,
        identity=False,
    )


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: alpha / rank * B A is added to the weight of every linear layer but the output embedding.

    Only A and B are trained.
    """

    rank: int = setting(0, "rank of every adapter; 0: no adapters, all weights are trained", at_least=0, at_most=1e5)
    alpha: float = setting(32.0, "scale of the adapters", above=0, at_most=1e6, inert=when("engine.lora.rank", 0))


@dataclass(frozen=True)
class DeepspeedConfig:
    """DeepSpeed's engine, one per agent: what is sharded across its ranks (processes, one device each)."""

    stage: int = setting(
        2,
        "ZeRO stage",
        choices={
            1: "optimizer states and fp32 master weights are sharded, gradients are reduced once per update",
            2: "gradients are sharded too, and reduced in every pass",
        },
    )
    offload_optimizer: bool = setting(
        False, "keep optimizer states and master weights in host memory and update them there", identity=False
    )


@dataclass(frozen=True)
class EngineConfig:
    """Sampling and training engines, and their device."""

    sampler: str = setting(
        "transformers",
        "sampling engine",
        choices={
            "transformers": "in the learner, with its weights",
            "vllm": "vLLM, with a copy of the learner's weights",
        },
    )
    vllm: VllmConfig = setting(VllmConfig, "vLLM's engine", inert=unless("engine.sampler", "vllm"))
    learner: str = setting(
        "torch",
        "training engine",
        choices={"torch": "PyTorch on one device", "deepspeed": "DeepSpeed on one or more devices"},
    )
    deepspeed: DeepspeedConfig = setting(
        DeepspeedConfig, "DeepSpeed's engine", inert=unless("engine.learner", "deepspeed")
    )
    lora: LoraConfig = setting(LoraConfig, "low-rank adapters")
    device: str = setting(
        "cpu",
        "device of each process",
        choices={"cpu": "", "cuda": "the first GPU visible to the process"},
        remedy="CUDA_VISIBLE_DEVICES chooses the GPU",
    )
    gpu_memory_gb: float | None = setting(
        None,
        "memory of one GPU; experiments that do not fit are rejected before they start. null: the memory of the GPU in "
        "this machine, which is also an upper limit on any value given here",
        unit="GiB",
        above=0,
        identity=False,
        inert=when("engine.device", "cpu"),
    )
    dtype: str = setting(
        "float32",
        "data type of weights and activations",
        choices={"float32": "", "bfloat16": "with fp32 master weights, gradient sums and log-softmax"},
    )
    num_threads: int | str = setting(
        AUTO,
        "CPU threads per process; another number changes results in the last bits. auto: the machine's usable cores, "
        "shared out among the experiments that a worker runs at a time and the processes of this one (1 each with "
        "placement.ray.address); an experiment keeps the number with which it started",
    )
    micro_batch_tokens: int = setting(
        16384,
        "most tokens in one forward and backward pass; with shared_prompts, a prompt counts once; padded rows "
        "count with their padding",
        unit="tokens",
        at_least=1,
    )
    compile: bool = setting(
        False,
        "compile the learner's decoder layers, and what follows the logits of a plain linear head, with "
        "torch.compile: norms, activations and sums in fewer kernels; each process's first step takes 20 s longer on "
        "an H100 (0.5 B weights), minutes on a CPU",
    )
    row_layout: str = setting(
        "auto",
        "layout of the rows in a forward pass",
        choices={
            "padded": "one row per sequence, with padding",
            "shared_prompts": "packed one after another, the prompt of each problem only once",
            "auto": "shared_prompts for models that support it, else padded",
        },
    )
    gradient_checkpointing: bool | int | str = setting(
        False,
        "recompute activations in the backward pass to save memory: those of all decoder layers (true), or of this "
        "many; the gradient is the same, for all layers a quarter of an update's time is lost. auto: of as few as each "
        "agent's GPU has no room for, decided when the experiment is planned; with device=cuda only",
        identity=False,
    )
    deterministic: bool = setting(
        False, "use deterministic CUDA kernels where they exist, which are slower; replays must then be bitwise equal"
    )
    skip_zero_advantage: bool = setting(
        True,
        "leave rows with an advantage of 0 out of an update's passes: same gradient, but ratio metrics over the other "
        "rows only",
    )

    @property
    def logprob_chunk_mb(self) -> int:
        """Size of one chunk of fp32 logits, MiB; up to three such buffers exist at a time."""
        return 1024 if self.device == "cuda" else 64

    @property
    def max_places(self) -> float:
        """Most positions for attention per token of micro_batch_tokens: there, rows repeat prompts and are padded.

        With 2, rows of 300 tokens need a twentieth more passes than with 4, rows of 1,200 none; but what a GPU saves
        for the backward pass is bounded by it.
        """
        return 2.0 if self.device == "cuda" else 4.0


_NOT_RAY = unless("placement.kind", "ray")


@dataclass(frozen=True)
class RayConfig:
    """The Ray cluster to use."""

    address: str | None = setting(
        None,
        "host:port of a running cluster, or auto for the one that this machine belongs to; null: start Ray on this "
        "machine, for this run only",
    )


@dataclass(frozen=True)
class PlacementConfig:
    """Processes and devices of the agents."""

    kind: str = setting(
        "local",
        "where agents run",
        choices={"local": "in this process, one at a time", "ray": "each agent in its own processes, in parallel"},
        identity=False,
    )
    num_ranks: int | str = setting(
        1,
        "ranks (processes) per agent; several ranks split the problems for sampling and train with DeepSpeed. auto: "
        "split total_ranks among the agents by what a step costs each; an agent that trains alone gets half",
        identity=False,
    )
    total_ranks: int | None = setting(
        None,
        "ranks of all agents together, with num_ranks: auto; on one machine, its number of GPUs",
        at_least=1,
        at_most=4096,
        identity=False,
        inert=unless("placement.num_ranks", AUTO),
    )
    colocated: bool = setting(False, "all agents share the same devices, one at a time", identity=False, inert=_NOT_RAY)
    ray: RayConfig = setting(RayConfig, "Ray cluster", identity=False, inert=_NOT_RAY)
