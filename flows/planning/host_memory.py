"""Estimate of the host memory that training needs, from model shapes and the configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import psutil

from flows.planning.memory import GIB, ModelShape, min_gpu_gib, num_trained, shares_gpu
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.counts import num_ranks
from hacpo_core.config.samplers import sampler_of


def host_gib(config: ExperimentConfig, shapes: Mapping[str, ModelShape]) -> float:
    """Host memory that agents need at least on the fullest machine, in GiB.

    Bytes per weight of an agent whose R ranks share the machine:

        20      with engine.deepspeed.offload_optimizer: masters 4, moments 8, gradients 4 + 2, weights 2
        R dtype while the agent is loaded: every rank reads the whole model; agents are loaded one after another
        dtype   while it works: the copy that is passed to a sampler's own processes, or the merged weights of a
                checkpoint with adapters

    Writing another checkpoint needs one tensor at a time. Not counted: Python and CUDA in each process, verifiers, page
    cache, other experiments on the machine.

    Args:
        config: the experiment's.
        shapes: of all its agents; in a Ray cluster, each agent is assumed to have its own machine.
    """
    engine = config.engine
    width = 2 if engine.dtype != "float32" else 4
    is_deepspeed = engine.learner == "deepspeed"
    copies = not sampler_of(engine).shares_weights or engine.lora.rank > 0
    takes_turns = shares_gpu(config)
    held_bytes, working_bytes, peak_bytes = 0.0, [0.0], [0.0]
    for agent, shape in shapes.items():
        total, trained = shape.num_parameters, num_trained(config, shape)
        agent_bytes = 0.0
        if is_deepspeed and engine.deepspeed.offload_optimizer:
            agent_bytes = 20.0 * trained
        loading = num_ranks(config, agent) * width * total
        peak_bytes.append(held_bytes + max(agent_bytes, loading))
        working_bytes.append(width * total if copies else 0.0)
        if config.placement.ray.address is not None:
            peak_bytes.append(agent_bytes + working_bytes[-1])
        else:
            held_bytes += agent_bytes
            peak_bytes.append(held_bytes + (max(working_bytes) if takes_turns else sum(working_bytes)))
    return max(peak_bytes) / GIB


def machine_gib(config: ExperimentConfig) -> float | None:
    """Memory of a machine with GPUs, in GiB: of this machine if it has a GPU, else None."""
    if config.engine.device == "cpu":
        return None
    return min(psutil.virtual_memory().total, _container_bytes()) / GIB if min_gpu_gib() is not None else None


def _container_bytes() -> float:
    """Memory limit of the container (cgroups v2), in bytes; infinite without a limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return math.inf
    return float(limit) if limit.isdigit() else math.inf
