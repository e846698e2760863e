"""Checks of a filled configuration: what is out of range, what contradicts itself, what cannot take effect."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hacpo_core.addresses import has_password
from hacpo_core.config.counts import num_gpus, num_ranks, num_samples, num_sources, sharing_agents
from hacpo_core.config.fields import declaration
from hacpo_core.config.identity import inert_fields
from hacpo_core.config.schema import (
    ALL_LINEAR,
    AUTO,
    SEAMS,
    VERIFIER,
    ExperimentConfig,
    TinyModelConfig,
    as_dict,
    flatten,
)
from hacpo_core.errors import ConfigError

_AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PAIR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
_METHOD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]{0,63}")
_BENCHMARK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

_CHOICES: dict[str, tuple[str, ...]] = {
    "conformance": ("paper", "official"),
    "old_logprobs": ("checked", "learner", "sampler"),
    "retokenize.eos": ("keep", "drop"),
    "optimizer.schedule": ("constant", "cosine"),
    "engine.sampler": ("transformers", "vllm"),
    "engine.vllm.process": ("shared", "own"),
    "engine.learner": ("torch", "deepspeed"),
    "engine.dtype": ("float32", "bfloat16"),
    "placement.kind": ("local", "ray"),
    "engine.head_dtype": ("same", "float32"),
    "engine.grad_dtype": ("same", "float32"),
    "engine.row_layout": ("auto", "padded", "shared_prompts"),
    "data.source": ("arithmetic", "jsonl"),
    "verifier.equality": ("math_verify", "normalised"),
    "verifier.style": ("boxed", "last_number", "plain", "auto"),
    "runtime.runner": ("prefect", "direct"),
}

# field -> (least, most, is_open): is_open excludes the least itself.
_RANGES: dict[str, tuple[float, float, bool]] = {
    "seed": (0, 2**53, False),
    "rollout.num_samples": (1, 1e5, False),
    "rollout.temperature": (0, 1e3, True),
    "rollout.top_p": (0, 1, True),
    "rollout.max_prompt_tokens": (1, 1e9, False),
    "rollout.max_response_tokens": (1, 1e9, False),
    "rollout.batch_size": (1, 1e9, False),
    "train.num_steps": (1, 1e9, False),
    "train.problems": (1, 1e9, False),
    "optimizer.learning_rate": (0, 1e3, True),
    "optimizer.beta1": (0, 0.999999, False),
    "optimizer.beta2": (0, 0.999999, False),
    "optimizer.epsilon": (0, 1, True),
    "optimizer.weight_decay": (0, 1e3, False),
    "optimizer.max_grad_norm": (0, 1e12, True),
    "optimizer.warmup_updates": (0, 1e9, False),
    "engine.num_threads": (1, 4096, False),
    "engine.gpu_memory_gb": (0, 1e5, True),
    "engine.host_memory_gb": (0, 1e7, True),
    "engine.deepspeed.timeout_s": (0, 1e6, True),
    "engine.vllm.memory_share": (0, 1, True),
    "engine.vllm.kv_cache_gb": (0, 1e5, True),
    "engine.vllm.tensor_parallel_size": (1, 1024, False),
    "engine.vllm.max_model_tokens": (2, 1e9, False),
    "engine.vllm.sync_tokens": (1, 1e6, False),
    "engine.vllm.sync_tolerance": (0, 1e3, True),
    "engine.vllm.sync_bound": (0, 1e3, True),
    "placement.total_ranks": (1, 4096, False),
    "placement.ray.timeout_s": (0, 86400, True),
    "engine.deepspeed.stage": (0, 3, False),
    "engine.micro_batch_tokens": (1, 1e12, False),
    "engine.lora.rank": (0, 1e5, False),
    "engine.lora.alpha": (0, 1e6, True),
    "engine.logprob_chunk_mb": (1, 1e6, False),
    "verifier.num_workers": (1, 1024, False),
    "verifier.timeout_s": (0, 1e5, True),
    "verifier.memory_mb": (256, 1e9, False),
    "reward.timeout_s": (0, 1e5, True),
    "reward.memory_mb": (256, 1e9, False),
    "verifier.max_unscored_fraction": (0, 1, False),
    "evaluate.every": (0, 1e9, False),
    "evaluate.max_response_tokens": (1, 1e9, False),
    "evaluate.shard_problems": (1, 1e9, False),
    "checkpoint.every": (1, 1e9, False),
    "checkpoint.keep": (1, 1e9, False),
    "diagnostics.every": (0, 1e9, False),
    "runtime.phase_retries": (0, 100, False),
    "runtime.retry_delay_s": (0, 3600, False),
}

# Fields of every benchmark.
_BENCHMARK_CHOICES: dict[str, tuple[str | None, ...]] = {
    "source": ("arithmetic", "file"),
    "split": ("dev", "test"),
    "answer_form": ("whole", "boxed", "hashes"),
    "hub.answer_form": ("whole", "boxed", "hashes"),
    "style": (None, *_CHOICES["verifier.style"]),
    "metric": ("avg", "best", "bootstrap_best"),
}
_BENCHMARK_RANGES: dict[str, tuple[float, float, bool]] = {
    "count": (1, 1e9, False),
    "num_samples": (1, 1e5, False),
    "temperature": (0, 1e3, False),
    "top_p": (0, 1, True),
    "max_response_tokens": (1, 1e9, False),
    "limit": (1, 1e9, False),
}

# Fields of every tiny agent.
_TINY_CHOICES: dict[str, tuple[str | None, ...]] = {
    "family": ("qwen3", "llama", "gpt_neox"),
    "tokenizer": ("character", "merged", "word", "byte"),
}
_TINY_RANGES: dict[str, tuple[float, float, bool]] = {
    "hidden_size": (1, 1e5, False),
    "num_layers": (1, 1e4, False),
    "num_heads": (1, 1e4, False),
    "num_kv_heads": (1, 1e4, False),
    "max_positions": (1, 1e7, False),
    "warmup.num_demonstrations": (1, 1e9, False),
    "warmup.steps": (0, 1e9, False),
    "warmup.batch_size": (1, 1e9, False),
    "warmup.learning_rate": (0, 1e3, True),
}


def validate(config: ExperimentConfig, *, overrides: Iterable[str] = ()) -> None:
    """Check everything that can be known before a file or a model is opened.

    Args:
        config: the filled configuration; never changed.
        overrides: dotted names of the fields that a person set by hand; one that cannot take effect is an error.

    Raises:
        ConfigError: one sentence that names the field, the value, what is expected and the remedy.
    """
    flat = flatten(as_dict(config))
    _check_fields(flat, _CHOICES, _RANGES)
    for seam in SEAMS:
        _check_declared(getattr(config.method, seam), f"method.{seam}.")
    if config.engine.device not in ("cpu", "cuda"):
        raise ConfigError(
            f"engine.device: got {config.engine.device!r}, expected cpu or cuda; CUDA_VISIBLE_DEVICES chooses the GPU"
        )
    _check_template("data.template", config.data.template)
    _check_agents(config)
    _check_minibatches(config)
    _check_benchmarks(config)
    _check_equality(config)
    _check_reward(config)
    _check_vllm(config)
    _check_placement(config)
    _check_lora(config)
    _check_deepspeed(config)
    if has_password(config.tracking.uri or ""):
        raise ConfigError(
            "tracking.uri: holds a password, and the configuration is saved and logged; give the address by the "
            "environment, MLFLOW_TRACKING_URI, and leave tracking.uri out"
        )
    if config.method.objective.is_token_level and config.method.shares_rollouts:
        raise ConfigError(
            f"method.objective.name: got {config.method.objective.name}, which has a ratio per token, with "
            "method.shares_rollouts=true, but tokens of different tokenizers do not align; set one of sequences, such "
            "as sequence_clip"
        )
    inert = inert_fields(config)
    for name in overrides:
        benchmark = name.removeprefix("evaluate.benchmarks.").partition(".")[0]
        if name.startswith("evaluate.benchmarks.") and benchmark not in config.evaluate.benchmarks:
            raise ConfigError(
                f"{name} cannot take effect: {benchmark} is neither in evaluate.during nor in evaluate.final; "
                "add it there or leave it out"
            )
        if name in inert:
            raise ConfigError(f"{name} cannot take effect: {inert[name]}; leave it out")


def _check_fields(
    flat: Mapping[str, Any],
    choices_of: Mapping[str, tuple[str | None, ...]],
    ranges: Mapping[str, tuple[float, float, bool]],
    prefix: str = "",
) -> None:
    """Check single fields; a number that is None is one that its field allows to be left open."""
    for name, choices in choices_of.items():
        if flat[name] not in choices:
            expected = ", ".join("null" if choice is None else choice for choice in choices)
            raise ConfigError(f"{prefix}{name}: got {flat[name]!r}, expected one of {expected}")
    for name, (least, most, is_open) in ranges.items():
        value = flat[name]
        if value is not None and not (least < value <= most if is_open else least <= value <= most):
            bracket = "(" if is_open else "["
            raise ConfigError(f"{prefix}{name}: got {value}, expected a value in {bracket}{least:g}, {most:g}]")


def _check_declared(section: Any, prefix: str) -> None:
    """Check each field of a section against what its own declaration says."""
    for field in dataclasses.fields(section):
        declared, value = declaration(field), getattr(section, field.name)
        if declared is None:
            continue
        if declared.choices and value not in declared.choices:
            expected = ", ".join(map(str, declared.choices))
            raise ConfigError(f"{prefix}{field.name}: got {value!r}, expected one of {expected}")
        least = declared.at_least if declared.above is None else declared.above
        if least is None and declared.at_most is None:
            continue
        low, high = -math.inf if least is None else least, math.inf if declared.at_most is None else declared.at_most
        is_open = declared.above is not None
        if not (low < value <= high if is_open else low <= value <= high):
            remedy = f" ({declared.remedy})" if declared.remedy else ""
            bracket = "(" if is_open else "["
            raise ConfigError(
                f"{prefix}{field.name}: got {value}, expected a value in {bracket}{low:g}, {high:g}]{remedy}"
            )


def _check_template(field: str, template: str) -> None:
    if "{problem}" not in template:
        raise ConfigError(f"{field}: got {template!r}; write {{problem}} where the problem goes")


def _check_benchmarks(config: ExperimentConfig) -> None:
    for name, benchmark in config.evaluate.benchmarks.items():
        field = f"evaluate.benchmarks.{name}"
        if not _BENCHMARK_NAME.fullmatch(name):
            raise ConfigError(f"evaluate.benchmarks: got the name {name!r}, expected letters, digits, '_' and '-' only")
        _check_fields(flatten(as_dict(benchmark)), _BENCHMARK_CHOICES, _BENCHMARK_RANGES, prefix=f"{field}.")
        if benchmark.source == "file" and not benchmark.file:
            raise ConfigError(f"{field}.file: got none; name a JSONL or Parquet file of the data folder")
        _check_template(f"{field}.template", benchmark.template)
        if benchmark.temperature == 0 and benchmark.num_samples > 1:
            raise ConfigError(
                f"{field}.num_samples: got {benchmark.num_samples} with temperature 0, where all samples are the same; "
                "set a temperature or num_samples=1"
            )
        if benchmark.metric != "avg" and benchmark.num_samples == 1:
            raise ConfigError(
                f"{field}.metric: got {benchmark.metric} with num_samples 1; set num_samples, or metric=avg"
            )
        if bool(benchmark.hub.name) != bool(benchmark.hub.file):
            raise ConfigError(f"{field}.hub: expected both name and file, or neither; set {field}.hub.file")
    for name in (*config.evaluate.during, *config.evaluate.final):
        if name not in config.evaluate.benchmarks:
            raise ConfigError(f"evaluate: {name} is not declared; add evaluate.benchmarks.{name}")


def _check_equality(config: ExperimentConfig) -> None:
    if config.verifier.equality != "normalised":
        return
    styles = {f"evaluate.benchmarks.{name}.style": found.style for name, found in config.evaluate.benchmarks.items()}
    for field, style in {"verifier.style": config.verifier.style, **styles}.items():
        if style not in (None, "boxed"):
            raise ConfigError(
                f"{field}: got {style} with verifier.equality=normalised, which reads the last box of a response; "
                f"set {field}=boxed, or verifier.equality=math_verify"
            )


def _check_reward(config: ExperimentConfig) -> None:
    reward = config.reward
    if not reward.functions:
        raise ConfigError(f"reward.functions: got none, expected at least one, such as {VERIFIER}")
    for name in reward.functions:
        if name not in (VERIFIER, "math_verify", "exact_match") and not all(name.partition(":")):
            raise ConfigError(
                f"reward.functions: got {name!r}, expected {VERIFIER}, math_verify, exact_match, or "
                "package.module:function of your own"
            )
    weights = reward.weights
    if weights is None:
        return
    if len(weights) != len(reward.functions):
        raise ConfigError(
            f"reward.weights: got {len(weights)} for {len(reward.functions)} functions; give each one a weight"
        )
    if not all(0 <= weight < math.inf for weight in weights) or sum(weights) == 0:
        raise ConfigError(f"reward.weights: got {list(weights)}, expected numbers of 0 or more, one of them above 0")


def _check_vllm(config: ExperimentConfig) -> None:
    vllm, rollout = config.engine.vllm, config.rollout
    if config.engine.sampler != "vllm":
        return
    if rollout.top_p < 1 and rollout.temperature != 1:
        raise ConfigError(
            f"rollout.top_p: got {rollout.top_p} with rollout.temperature {rollout.temperature}, where vLLM reports no "
            "log-probabilities of the policy; set one of them to 1, or engine.sampler=transformers"
        )
    if vllm.process == "own":
        return
    if config.engine.learner == "deepspeed":
        raise ConfigError(
            "engine.vllm.process: got shared with engine.learner=deepspeed, and each brings a process group of its "
            "own; set engine.vllm.process=own"
        )
    remedy = "set engine.vllm.process=own"
    if vllm.tensor_parallel_size > 1:
        raise ConfigError(f"engine.vllm.tensor_parallel_size: got {vllm.tensor_parallel_size} in one process; {remedy}")
    num_here = len(config.pair.agents) if config.placement.kind == "local" else 1
    if vllm.sleeps and config.engine.device != "cpu" and num_here > 1:
        raise ConfigError(
            "engine.vllm.sleeps: only one engine of a process can sleep, and "
            f"{num_here} agents share this one; {remedy} or engine.vllm.sleeps=false"
        )


def _check_placement(config: ExperimentConfig) -> None:
    wanted = config.placement.num_ranks
    if wanted != AUTO and not (isinstance(wanted, int) and 1 <= wanted <= 4096):
        raise ConfigError(f"placement.num_ranks: got {wanted!r}, expected {AUTO} or a whole number in [1, 4096]")
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
            f"engine.vllm.tensor_parallel_size: got {num_gpus(config)} with placement.colocated=true, where each rank "
            "is given its share of a single GPU; set it to 1, or placement.colocated=false"
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
            f"placement.num_ranks: got {AUTO} with placement.colocated=true, where all agents have the same GPUs and "
            "none are shared out; set a number"
        )
    least = num_sharers + sum(agent.num_ranks or 0 for agent in config.pair.agents.values())
    if placement.total_ranks is None or placement.total_ranks < least:
        raise ConfigError(
            f"placement.total_ranks: got {placement.total_ranks} with placement.num_ranks={AUTO}, expected at least "
            f"{least}, one for each agent; set it to the number of GPUs"
        )


def _check_deepspeed(config: ExperimentConfig) -> None:
    deepspeed = config.engine.deepspeed
    if config.engine.learner != "deepspeed":
        return
    if config.engine.offloads:
        raise ConfigError(
            "engine.offloads: got true with engine.learner=deepspeed, which keeps the optimizer in host memory by a "
            "setting of its own; set engine.deepspeed.offload_optimizer=true"
        )
    if deepspeed.offload_optimizer and deepspeed.stage == 0:
        raise ConfigError(
            "engine.deepspeed.offload_optimizer: stage 0 divides no optimizer and offloads none; "
            "set engine.deepspeed.stage to 1, 2 or 3"
        )
    is_wide = config.engine.grad_dtype == "float32" and config.engine.dtype != "float32"
    if is_wide and (deepspeed.stage == 0 or (deepspeed.stage == 1 and not deepspeed.offload_optimizer)):
        raise ConfigError(
            f"engine.grad_dtype: got float32 at engine.deepspeed.stage={deepspeed.stage}, where DeepSpeed sums "
            "gradients in engine.dtype; set stage 2 or 3, or stage 1 with engine.deepspeed.offload_optimizer=true"
        )
    if deepspeed.offload_parameters and deepspeed.stage != 3:
        raise ConfigError(
            f"engine.deepspeed.offload_parameters: stage {deepspeed.stage} keeps whole weights on every device; "
            "set engine.deepspeed.stage=3"
        )


def _check_lora(config: ExperimentConfig) -> None:
    lora = config.engine.lora
    targets = list(lora.targets)
    if lora.rank == 0:
        return
    if not targets or (ALL_LINEAR in targets and len(targets) > 1):
        raise ConfigError(
            f"engine.lora.targets: got {targets}, expected names of layers, or {ALL_LINEAR} alone; set one of these"
        )
    if config.engine.learner == "deepspeed":
        raise ConfigError(
            f"engine.lora.rank: got {lora.rank} with engine.learner=deepspeed, which was not tried with adapters; "
            "set engine.learner=torch"
        )


def _check_agents(config: ExperimentConfig) -> None:
    # Both are parts of the id, which names a folder and is looked for in MLflow.
    if not _PAIR_NAME.fullmatch(config.pair.name):
        raise ConfigError(
            f"pair.name: got {config.pair.name!r}, expected at most 128 letters, digits, '_', '.', '+', '-'"
        )
    if not _METHOD_NAME.fullmatch(config.method.name):
        raise ConfigError(
            f"method.name: got {config.method.name!r}, expected at most 64 letters, digits, '_', '.', '+'"
        )
    if not config.pair.agents:
        raise ConfigError("pair.agents: got none, expected at least one agent; choose a file of experiments/pairs")
    for name, agent in config.pair.agents.items():
        if not _AGENT_NAME.fullmatch(name):
            raise ConfigError(f"pair.agents: got the name {name!r}, expected at most 64 letters, digits, '_', '.', '-'")
        if (agent.path is None) == (agent.tiny is None):
            raise ConfigError(f"pair.agents.{name}: expected exactly one of path and tiny; set path to a model folder")
        if agent.num_ranks is not None and not 1 <= agent.num_ranks <= 4096:
            raise ConfigError(f"pair.agents.{name}.num_ranks: got {agent.num_ranks}, expected a value in [1, 4096]")
        if agent.tiny is not None:
            _check_tiny(agent.tiny, f"pair.agents.{name}.tiny.")


def _check_tiny(tiny: TinyModelConfig, prefix: str) -> None:
    _check_fields(flatten(as_dict(tiny)), _TINY_CHOICES, _TINY_RANGES, prefix=prefix)
    # Rotary embeddings turn the two halves of a head against each other.
    if tiny.hidden_size % (2 * tiny.num_heads):
        raise ConfigError(
            f"{prefix}hidden_size: got {tiny.hidden_size}, expected an even number for each of the {tiny.num_heads} "
            f"heads; set it to a multiple of {2 * tiny.num_heads}"
        )
    if tiny.family != "gpt_neox" and tiny.num_heads % tiny.num_kv_heads:
        raise ConfigError(
            f"{prefix}num_kv_heads: got {tiny.num_kv_heads}, which does not divide num_heads={tiny.num_heads}; "
            "set it to a divisor"
        )
    shares = tiny.warmup.misconceptions
    if len(shares) != 3 or any(not 0 <= share <= 1 for share in shares):
        raise ConfigError(f"{prefix}warmup.misconceptions: got {list(shares)}, expected three probabilities in [0, 1]")


def _check_minibatches(config: ExperimentConfig) -> None:
    found = config.method.build.problem_with(
        num_problems=config.train.problems,
        num_samples=config.rollout.num_samples,
        samples_per_problem=num_samples(config),
        num_sources=num_sources(config),
    )
    if found:
        raise ConfigError(f"method.build.{found}; or change train.problems ({config.train.problems})")
