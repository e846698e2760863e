"""Schema of an experiment's configuration: frozen dataclasses that OmegaConf fills, one per component.

Units stand under each field. `hacpo_core.config.checks` checks a filled configuration; nothing here computes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union  # noqa: UP035  OmegaConf reads these annotations


@dataclass(frozen=True)
class WarmupConfig:
    """Supervised warm-up of an embedded agent on noisy demonstrations."""

    num_demonstrations: int = 16000
    """demonstrations drawn, each with its own misconceptions, >= 1"""
    steps: int = 650
    """optimizer steps; 0 leaves the weights random"""
    batch_size: int = 64
    """demonstrations per step"""
    learning_rate: float = 4e-3
    """peak of a cosine schedule"""
    misconceptions: List[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # noqa: UP006
    """probability per demonstration of ignoring parentheses, of dropping the minus sign of results, and of forgetting
    the last operand"""
    seed: int = 0
    """of the initial weights and of the demonstrations"""


@dataclass(frozen=True)
class TinyModelConfig:
    """A model that is made on this machine: transformers' own classes at toy size."""

    family: str = "qwen3"
    """qwen3 | llama | gpt_neox"""
    tokenizer: str = "character"
    """character | merged (numbers and phrases as single tokens) | word (numbers to 99 and words) | byte (any text)"""
    hidden_size: int = 96
    """width of the residual stream"""
    num_layers: int = 2
    """transformer blocks"""
    num_heads: int = 4
    """query heads"""
    num_kv_heads: int = 2
    """key and value heads, divides num_heads"""
    max_positions: int = 128
    """longest sequence in tokens"""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)


@dataclass(frozen=True)
class AgentConfig:
    """Where one agent comes from: a Hugging Face model folder, or a tiny model made here. Exactly one of the two."""

    path: Optional[str] = None  # noqa: UP045
    """local folder (config.json, *.safetensors, tokenizer) or a hub name"""
    tiny: Optional[TinyModelConfig] = None  # noqa: UP045
    chat_template: Optional[str] = None  # noqa: UP045
    """Jinja template that replaces the tokenizer's own"""
    chat_template_kwargs: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """names that the chat template reads, and their values, for every prompt of this agent (enable_thinking: false);
    null: not handed over"""
    trust_remote_code: bool = False
    """run Python code that lies in the model folder"""
    num_ranks: Optional[int] = None  # noqa: UP045
    """processes of this agent, >= 1; null: placement.num_ranks"""


@dataclass(frozen=True)
class PairConfig:
    """The agents that train together, one or more."""

    name: str = "unnamed"
    agents: Dict[str, AgentConfig] = field(default_factory=dict)  # noqa: UP006
    """by name; the order is the agents' order"""


SEAMS = ("plan", "estimate", "build", "objective")
"""sections of `method` that hold an implementation of a seam"""


@dataclass(frozen=True)
class MethodConfig:
    """What tells one algorithm from another: an implementation of each seam of `hacpo_core.methods.base`.

    In YAML a seam is a mapping of `name` and the implementation's own fields; `flows.compose` puts the dataclass of
    that name in its place.
    """

    name: str = "unnamed"
    """of the method, a part of the experiment's id for people to read"""
    shares_rollouts: bool = True
    """whether learners train on other agents' responses"""
    plan: Any = None
    """which responses an agent samples, and how"""
    estimate: Any = None
    """advantage and weight of each row for each learner"""
    build: Any = None
    """which rows make up which mini-batch"""
    objective: Any = None
    """what an update maximises"""


@dataclass(frozen=True)
class RetokenizeConfig:
    """How a response crosses from one tokenizer to another."""

    eos: str = "keep"
    """keep: a finished response ends in the learner's EOS | drop (official code): EOS removed, own and cross alike,
    but for a response of EOS alone"""


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling during training."""

    num_samples: int = 8
    """G: responses per problem and agent, >= 1"""
    temperature: float = 1.0
    """> 0; the policy is the softmax of logits / temperature, in the sampler and in the learner"""
    top_p: float = 1.0
    """nucleus sampling, in (0, 1]"""
    max_prompt_tokens: int = 1024
    """a problem with a longer prompt is dropped from the data and counted"""
    max_response_tokens: int = 4096
    """response limit"""
    batch_size: int = 256
    """responses sampled side by side"""


@dataclass(frozen=True)
class TrainConfig:
    """Length and width of training."""

    num_steps: int = 58
    """rollout-and-update steps; 58 is one epoch of MATH at 128 problems"""
    problems: int = 128
    """P: problems per step"""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = 1e-6
    """peak"""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    """gradient is scaled down to this norm, > 0"""
    schedule: str = "constant"
    """constant | cosine (falls to 0 after the last update)"""
    warmup_updates: int = 0
    """linear rise of the learning rate, in optimizer updates"""


@dataclass(frozen=True)
class VllmConfig:
    """vLLM's offline engine, one per agent; `rollout.batch_size` is the number of responses it works on at a time."""

    process: str = "shared"
    """shared: in the agent's process, weights handed over in memory | own: in processes of its own, by safetensors"""
    memory_share: float = 0.4
    """share of a device's memory (of the machine's on the CPU) for one agent's weights and cache, in (0, 1]"""
    kv_cache_gb: Optional[float] = None  # noqa: UP045
    """GiB of the cache of keys and values; null: what memory_share leaves"""
    tensor_parallel_size: int = 1
    """devices that one agent's engine is spread over; over 1 takes process=own"""
    max_model_tokens: Optional[int] = None  # noqa: UP045
    """longest prompt and response together; null: rollout.max_prompt_tokens and the longest response limit"""
    enforce_eager: bool = False
    """no compilation and no CUDA graphs: starts sooner, samples slower"""
    prefix_caching: bool = True
    """encode a prompt that several responses share once"""
    sleeps: bool = True
    """give device memory back between samplings, so that the learner can have it; not on the CPU"""
    sync_tokens: int = 256
    """tokens whose log-probabilities are compared with the learner's after each hand-over of weights, at least"""
    sync_tolerance: float = 1e-3
    """their largest mean difference in nats; a larger one stops the run. bfloat16 needs more"""
    sync_bound: float = 2.0
    """largest difference of a single token in nats; a larger one stops the run"""


VERIFIER = "verifier"
"""name of the reward function that gives the verifier's verdicts"""
AUTO = "auto"
"""value of placement.num_ranks that a plan replaces by numbers"""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: alpha / rank * B A is added to a weight, and nothing but A and B is trained."""

    rank: int = 0
    """of every adapter; 0: no adapters, all weights are trained"""
    alpha: float = 32.0
    targets: List[str] = field(default_factory=lambda: [ALL_LINEAR])  # noqa: UP006
    """names of layers, such as q_proj; all-linear alone: every linear layer but the output embedding"""


@dataclass(frozen=True)
class DeepspeedConfig:
    """DeepSpeed's engine, one per agent: what is divided among the ranks (processes, one device each) that train it."""

    stage: int = 2
    """ZeRO: 0 every rank holds all, 1 divides the optimizer and the fp32 weights, 2 gradients too, 3 weights too"""
    offload_optimizer: bool = False
    """keep the optimizer's state and the master weights in the machine's memory and step there; stages 1-3"""
    offload_parameters: bool = False
    """keep the divided weights in the machine's memory; stage 3"""
    timeout_s: float = 3600.0
    """longest wait of an agent's ranks for each other, such as for one that still loads or samples longer responses"""


@dataclass(frozen=True)
class EngineConfig:
    """What samples and what trains, and on what."""

    sampler: str = "transformers"
    """transformers: from the learner's own weights | vllm"""
    vllm: VllmConfig = field(default_factory=VllmConfig)
    learner: str = "torch"
    """torch: AdamW on one device | deepspeed: on one or several, see `deepspeed`"""
    deepspeed: DeepspeedConfig = field(default_factory=DeepspeedConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    device: str = "cpu"
    """cpu | cuda: the first GPU that this process sees"""
    gpu_memory_gb: Optional[float] = None  # noqa: UP045
    """GiB of one GPU; what cannot fit is refused before it starts. null: as the GPU here says, which
    counts also where it has less"""
    host_memory_gb: Optional[float] = None  # noqa: UP045
    """GiB of a machine that has the GPUs; what cannot fit is refused before it starts. null: as the machine here says,
    where it has a GPU"""
    dtype: str = "float32"
    """float32 | bfloat16 (fp32 master weights, fp32 log-softmax)"""
    head_dtype: str = "same"
    """of the output embedding's product, in learner and sampler: same (as dtype) | float32"""
    grad_dtype: str = "same"
    """of the sum of gradients over an update's passes: same (as dtype) | float32 (2 bytes a weight more in bfloat16)"""
    num_threads: int = 1
    """CPU threads of a process; another number gives other bits"""
    micro_batch_tokens: int = 16384
    """most tokens (padding included) in one forward and backward pass"""
    row_layout: str = "auto"
    """padded: rows side by side | shared_prompts: one after another, a problem's prompt only once | auto: the latter
    for models that can"""
    logprob_chunk_mb: int = 64
    """MiB of one chunk's fp32 logits; up to three such buffers exist at the same time"""
    gradient_checkpointing: bool = False
    offloads: bool = False
    """keep optimizer state and master weights in host memory, but for updates; weights too while others have a turn"""
    deterministic: bool = False
    """on CUDA: kernels that repeat themselves to the bit where there are such, slower; replays must then be exact"""
    skip_zero_advantage: bool = True
    """leave rows without advantage out of the update's passes: same gradient, ratio statistics over the others only"""


@dataclass(frozen=True)
class RayConfig:
    """Which Ray cluster, and how patient with it."""

    address: Optional[str] = None  # noqa: UP045
    """host:port of a running cluster, or auto: the one that this machine belongs to; null: Ray is started here, for
    this run alone"""
    timeout_s: float = 120.0
    """longest wait for the cluster's answer and for an agent's processes to be placed"""


@dataclass(frozen=True)
class PlacementConfig:
    """Where agents live."""

    kind: str = "local"
    """local: in this process, taking turns | ray: each agent in processes of its own, side by side"""
    num_ranks: Union[int, str] = 1  # noqa: UP007
    """processes of one agent; over 1 they sample shares of the problems, and train as DeepSpeed's ranks | auto: the
    agents' shares of total_ranks, in proportion to their parameters; an agent that trains alone gets half of them"""
    total_ranks: Optional[int] = None  # noqa: UP045
    """processes of all agents together, num_ranks: auto; on one machine as many as it has GPUs"""
    colocated: bool = False
    """all agents on the same devices, taking turns"""
    pipelined: bool = True
    """an agent samples its next responses as soon as its own update is done, whatever the others do"""
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass(frozen=True)
class DataConfig:
    """Training problems, and the folder of all data files."""

    source: str = "jsonl"
    """arithmetic (embedded) | jsonl"""
    directory: Optional[str] = None  # noqa: UP045
    """folder of the training file and of the benchmarks' files; default: the environment's HACPO_DATA_DIR"""
    train_file: Optional[str] = "math_train.jsonl"  # noqa: UP045
    template: str = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
    """the user's message; {problem} is replaced"""
    system: Optional[str] = None  # noqa: UP045


@dataclass(frozen=True)
class VerifierConfig:
    """When an answer is right; math-verify runs in child processes."""

    equality: str = "math_verify"
    """math_verify: by algebra | normalised (official code): the last box as text, after MATH's string normalisation"""
    style: str = "boxed"
    """boxed | last_number | plain | auto: where the answer stands in a response; equality: normalised takes boxed"""
    num_workers: int = 2
    timeout_s: float = 5.0
    """wall clock per answer; then the worker is killed and the response is unscored"""
    memory_mb: int = 2048
    """per worker"""
    cache: bool = True
    """decide equal (answer, gold) pairs once"""
    max_unscored_fraction: float = 0.05
    """an agent's step with a larger unscored share, rounded up to whole responses, or with no verdict, stops the run"""


@dataclass(frozen=True)
class RewardConfig:
    """What responses are rewarded for in training; evaluations go by the verifier alone."""

    functions: List[str] = field(default_factory=lambda: [VERIFIER])  # noqa: UP006
    """verifier: 1 where it finds the answer right | math_verify, exact_match: the same by that rule, whatever
    verifier.equality is | package.module:function of your own"""
    weights: Optional[List[float]] = None  # noqa: UP006, UP045
    """of each function in their mean, >= 0; null: all alike"""
    timeout_s: float = 60.0
    """wall clock of one call of a function of your own; then its process is killed, and the responses unscored"""
    memory_mb: int = 4096
    """of the process of each function of your own"""


@dataclass(frozen=True)
class HubConfig:
    """Where a benchmark's file is downloaded from when it does not lie in the data folder, and its columns there."""

    name: str = ""
    """data set, owner/name; empty: the file is never downloaded"""
    file: str = ""
    """path of the JSONL or Parquet file inside the data set"""
    revision: str = "main"
    """commit, tag or branch"""
    id_field: Optional[str] = None  # noqa: UP045
    """column; null: the number of the row"""
    problem_field: str = "problem"
    answer_field: str = "answer"
    answer_form: str = "whole"
    """whole: the column is the answer | boxed: its last box | hashes: what follows its last ####"""


@dataclass(frozen=True)
class BenchmarkConfig:
    """A set of problems that agents are evaluated on: where it comes from, how it is asked, what is measured."""

    source: str = "file"
    """arithmetic (embedded) | file"""
    split: str = "dev"
    """source: arithmetic only: dev | test"""
    file: Optional[str] = None  # noqa: UP045
    """JSONL or Parquet, by its path in data.directory"""
    hub: HubConfig = field(default_factory=HubConfig)
    count: Optional[int] = None  # noqa: UP045
    """problems that the whole set must have; null: any number"""
    id_field: Optional[str] = "id"  # noqa: UP045
    """column; null: the number of the row"""
    problem_field: str = "problem"
    answer_field: str = "answer"
    answer_form: str = "whole"
    """whole: the column is the answer | boxed: its last box | hashes: what follows its last ####"""
    unit_field: Optional[str] = None  # noqa: UP045
    """column with the unit that a response may add to the answer; null: none"""
    tolerance_field: Optional[str] = None  # noqa: UP045
    """column with the absolute error that is allowed, empty where none is; null: none"""
    multiple_field: Optional[str] = None  # noqa: UP045
    """column that is true where the answer is a list whose order does not matter; null: none"""
    template: str = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
    """the user's message; {problem} is replaced"""
    system: Optional[str] = None  # noqa: UP045
    style: Optional[str] = None  # noqa: UP045
    """where the answer stands in a response, as verifier.style; null: verifier.style itself"""
    metric: str = "avg"
    """the figure of the result table: avg (avg@k: mean over problems and samples) | best (best@k: any of k is right) |
    bootstrap_best (verl's best@k: best of k draws from k samples, with replacement, mean of 1,000)"""
    num_samples: int = 1
    """k: responses per problem and agent, >= 1"""
    temperature: float = 0.0
    """0: greedy"""
    top_p: float = 1.0
    """nucleus sampling, in (0, 1]"""
    max_response_tokens: Optional[int] = None  # noqa: UP045
    """response limit; null: evaluate.max_response_tokens"""
    limit: Optional[int] = None  # noqa: UP045
    """most problems, from the set's beginning; null: all"""


@dataclass(frozen=True)
class EvaluateConfig:
    """Which benchmarks, and when: `during` and `final` before training, `during` on the way, `final` after it."""

    every: int = 10
    """steps between evaluations on `during`; 0: none but that before training"""
    during: List[str] = field(default_factory=list)  # noqa: UP006
    """benchmarks: names in experiments/benchmarks, YAML files, or names declared under `benchmarks`"""
    final: List[str] = field(default_factory=list)  # noqa: UP006
    """benchmarks"""
    max_response_tokens: int = 8196
    """response limit of benchmarks that have none of their own"""
    shard_problems: int = 256
    """problems whose responses are committed together; what is interrupted goes on after the last committed ones"""
    benchmarks: Dict[str, BenchmarkConfig] = field(default_factory=dict)  # noqa: UP006
    """the declarations of all names above, filled in from experiments/benchmarks where a field is not said here"""


@dataclass(frozen=True)
class CheckpointConfig:
    every: int = 10
    """steps between checkpoints, >= 1; the last step always has one"""
    keep: int = 2
    """newest checkpoints kept, >= 1"""
    accept_divergence: bool = False
    """go on when a replayed update is another one than the recorded, with a warning"""


@dataclass(frozen=True)
class DiagnosticsConfig:
    every: int = 10
    """steps between measurements of the cosine between the gradients of J_homo and J_hete; 0: never"""


@dataclass(frozen=True)
class TrackingConfig:
    enabled: bool = True
    uri: Optional[str] = None  # noqa: UP045
    """MLflow tracking URI, without a password; default: MLFLOW_TRACKING_URI, else <runtime.runs_dir>/mlflow.db"""
    experiment: str = "hacpo"
    """MLflow experiment"""


@dataclass(frozen=True)
class RuntimeConfig:
    """Where things lie and how they are run; changes no result."""

    runs_dir: str = "runs"
    runner: str = "prefect"
    """prefect | direct"""
    phase_retries: int = 2
    """times a failed phase is run again (never for a configuration or data error)"""
    retry_delay_s: float = 1.0


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: these agents, this method, this seed."""

    seed: int = 0
    conformance: str = "paper"
    """paper | official: the preset that was composed in; single fields may differ from it"""
    old_logprobs: str = "checked"
    """learner: recomputed by the training engine before the first update | sampler: as sampled, one pass saved |
    checked: as sampled where a few that the training engine recomputes are the same within 1e-5 nats, else learner"""
    pair: PairConfig = field(default_factory=PairConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    retokenize: RetokenizeConfig = field(default_factory=RetokenizeConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    data: DataConfig = field(default_factory=DataConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)


def as_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as nested dictionaries, ready for YAML or JSON."""
    return dataclasses.asdict(config)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one level of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def digest_of(tree: Any) -> str:
    """SHA-256 (hex) of a JSON-able value in canonical form."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
