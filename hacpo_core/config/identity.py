"""What identifies an experiment: every field that can change its results, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hacpo_core.config.fields import declaration
from hacpo_core.config.schema import (
    AUTO,
    SEAMS,
    BenchmarkConfig,
    ExperimentConfig,
    as_dict,
    digest_of,
    flatten,
)

# Sections and fields that change where and how fast a run goes, not what comes out of it. The contents of model
# folders and data files enter the identity through `fingerprints`, their paths do not.
_NOT_IDENTITY = re.compile(
    r"^(runtime|tracking|checkpoint|diagnostics)\.|^verifier\.(num_workers|cache)$"
    r"|^data\.(directory|train_file)$|^pair\.agents\..+\.path$|^pair\.name$|^method\.name$"
    r"|^engine\.(gpu|host)_memory_gb$|^engine\.vllm\.(process|memory_share|kv_cache_gb|sleeps|sync_\w+)$"
    r"|^placement\.(kind|colocated|pipelined|ray\.\w+)$|^(placement|pair\.agents\..+)\.num_ranks$"
    r"|^placement\.total_ranks$"
    r"|^engine\.deepspeed\.(offload_\w+|timeout_s)$"
    r"|^engine\.offloads$"
    r"|^evaluate\.shard_problems$|^evaluate\.benchmarks\.[^.]+\.(file|hub\..+|count)$"
)
ALGORITHM_VERSION = 2
"""part of every id; raised whenever the same fields give other numbers (docs/decisions.md#experiment-id)"""
_FILE_FIELDS = (
    *("file", "count", "id_field", "problem_field", "answer_field", "unit_field"),
    *("answer_form", "tolerance_field", "multiple_field"),
)
"""of a benchmark: how its file is read"""


def inert_fields(config: ExperimentConfig) -> dict[str, str]:
    """Dotted names of fields that cannot change this run's results, each with the reason."""
    inert: dict[str, str] = {}

    def mark(reason: str, *names: str) -> None:
        for name in names:
            inert.setdefault(name, reason)

    for seam in SEAMS:
        section = getattr(config.method, seam)
        for field in dataclasses.fields(section):
            declared = declaration(field)
            reason = declared.inert(config) if declared is not None and declared.inert is not None else None
            if reason is not None:
                mark(reason, f"method.{seam}.{field.name}")
    if config.engine.sampler != "vllm":
        mark(
            f"engine.sampler is {config.engine.sampler}",
            *(f"engine.vllm.{name}" for name in as_dict(config.engine.vllm)),
        )
    if config.engine.device == "cpu":
        mark("engine.device is cpu, where vLLM does not sleep", "engine.vllm.sleeps")
        mark("engine.device is cpu", "engine.gpu_memory_gb", "engine.host_memory_gb")
        mark("engine.device is cpu, which repeats itself to the bit anyway", "engine.deterministic")
        mark("engine.device is cpu, whose memory is the host's", "engine.offloads")
    if config.placement.kind != "ray":
        names = ("colocated", "pipelined", "ray.address", "ray.timeout_s")
        mark(f"placement.kind is {config.placement.kind}", *(f"placement.{name}" for name in names))
    if len(config.pair.agents) == 1:
        mark("one agent shares its devices with nobody", "placement.colocated")
    if all(agent.num_ranks is not None for agent in config.pair.agents.values()):
        mark("every agent has a number of its own", "placement.num_ranks", "placement.total_ranks")
    if config.placement.num_ranks != AUTO:
        mark(f"placement.num_ranks is {config.placement.num_ranks}, not auto", "placement.total_ranks")
    if config.engine.learner != "deepspeed":
        mark(
            f"engine.learner is {config.engine.learner}",
            *(f"engine.deepspeed.{name}" for name in as_dict(config.engine.deepspeed)),
        )
    elif config.engine.deepspeed.stage == 3:
        mark("engine.deepspeed.stage is 3, where no rank holds a whole gradient", "diagnostics.every")
    if not config.method.build.mixes_sources:
        mark("no update of method.build has own and others' responses", "diagnostics.every")
    if config.engine.lora.rank == 0:
        mark("engine.lora.rank is 0", "engine.lora.alpha", "engine.lora.targets")
    if config.engine.dtype == "float32":
        mark("engine.dtype is float32 anyway", "engine.head_dtype", "engine.grad_dtype")
    if config.verifier.equality == "normalised":
        workers = ("num_workers", "timeout_s", "memory_mb", "cache", "max_unscored_fraction")
        mark("verifier.equality is normalised, which starts no worker", *(f"verifier.{name}" for name in workers))
        for name in config.evaluate.benchmarks:
            columns = (f"evaluate.benchmarks.{name}.{kind}_field" for kind in ("unit", "tolerance", "multiple"))
            mark("verifier.equality is normalised, which compares letters alone", *columns)
    if not any(":" in name for name in config.reward.functions):
        mark("reward.functions names no function of your own", "reward.timeout_s", "reward.memory_mb")
    if len(config.reward.functions) == 1:
        mark("reward.functions names one alone", "reward.weights")
    if config.data.source == "arithmetic":
        mark("data.source is arithmetic", "data.train_file")
    benchmarks = config.evaluate.benchmarks
    if config.data.source == "arithmetic" and all(b.source == "arithmetic" for b in benchmarks.values()):
        mark("nothing is read from a file", "data.directory")
    if not config.evaluate.during:
        mark("evaluate.during is empty", "evaluate.every")
    if not any(benchmark.max_response_tokens is None for benchmark in benchmarks.values()):
        mark("no benchmark lacks a limit of its own", "evaluate.max_response_tokens")
    for name, benchmark in benchmarks.items():
        for reason, fields in _inert_of_benchmark(benchmark):
            mark(f"evaluate.benchmarks.{name}.{reason}", *(f"evaluate.benchmarks.{name}.{field}" for field in fields))
    return inert


def _inert_of_benchmark(benchmark: BenchmarkConfig) -> Iterator[tuple[str, Sequence[str]]]:
    """Reasons, each with the fields of the benchmark that cannot take effect."""
    if benchmark.source == "arithmetic":
        yield "source is arithmetic", [*_FILE_FIELDS, *(f"hub.{name}" for name in as_dict(benchmark.hub))]
    else:
        yield "source is file", ["split"]
    if benchmark.temperature == 0:
        yield "temperature is 0, greedy", ["top_p"]


def identity_fields(config: ExperimentConfig) -> dict[str, Any]:
    """Fields by dotted name that can change this run's results."""
    inert = inert_fields(config)
    fields = flatten(as_dict(config)).items()

    def is_part(name: str) -> bool:  # a template's argument may have any name, such as path
        return ".chat_template_kwargs." in name or not _NOT_IDENTITY.search(name)

    return {name: value for name, value in fields if is_part(name) and name not in inert}


def experiment_id(config: ExperimentConfig, fingerprints: Mapping[str, str]) -> str:
    """Name of the experiment: what it is, for people, and the hash of all that changes its results.

    Args:
        config: a valid configuration.
        fingerprints: content digest of every model folder and data file that the configuration names by path.

    Returns:
        "<pair>-<method>-s<seed>-<8 hex digits>".
    """
    contents = {
        "version": ALGORITHM_VERSION,
        "fields": identity_fields(config),
        "agents": list(config.pair.agents),
        "contents": dict(fingerprints),
    }
    return f"{config.pair.name}-{config.method.name}-s{config.seed}-{digest_of(contents)[:8]}"
