"""What vLLM declares of itself as a sampler. Imports neither vLLM nor torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hacpo_core.config import AUTO, EngineConfig, ExperimentConfig
from hacpo_core.config.counts import longest_sequence
from hacpo_core.config.samplers import SamplerKind, TransferCheck


@dataclass(frozen=True)
class VllmKind(SamplerKind):
    """vLLM, with a copy of the learner's weights. Its options are the section `engine.vllm`."""

    title = "vLLM"
    asleep_gib = 1.0  # an assumption
    memory_share_field = "engine.vllm.memory_share"
    num_gpus_field = "engine.vllm.tensor_parallel_size"

    def why_unfit(self, config: ExperimentConfig) -> str | None:
        """Memory share, filtered sampling, and what one process can hold."""
        vllm, rollout, share = config.engine.vllm, config.rollout, config.engine.vllm.memory_share
        if share != AUTO and not (isinstance(share, float | int) and 0 < share <= 1):
            return f"engine.vllm.memory_share: got {share!r}, expected {AUTO} or a number in (0, 1]"
        if share == AUTO and config.engine.device == "cpu":
            return (
                f"engine.vllm.memory_share: got {AUTO} with engine.device=cpu, for which it is not computed; set a "
                "number"
            )
        if rollout.limits.filters_tokens and rollout.temperature != 1:
            unset = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
            name = next(name for name, value in unset.items() if getattr(rollout, name) != value)
            return (
                f"rollout.{name}: got {getattr(rollout, name)} with rollout.temperature {rollout.temperature}, for "
                f"which vLLM does not report the policy's log-probabilities; set rollout.{name}={unset[name]:g}, "
                "rollout.temperature=1 or engine.sampler=transformers"
            )
        return None if vllm.process == "own" else _why_not_shared(config)

    def gpus_per_process(self, engine: EngineConfig) -> int:
        """Those over which tensors are split."""
        return engine.vllm.tensor_parallel_size

    def has_own_process(self, engine: EngineConfig) -> bool:
        """With `process: own`."""
        return engine.vllm.process == "own"

    def can_sleep(self, engine: EngineConfig) -> bool:
        """With `sleeps`."""
        return engine.vllm.sleeps

    def gpu_share(self, engine: EngineConfig) -> float | str:
        """`memory_share`, whether or not `kv_cache_gb` takes its place."""
        return engine.vllm.memory_share

    def with_gpu_share(self, engine: EngineConfig, share: float | str) -> EngineConfig:
        """With another `memory_share`."""
        return replace(engine, vllm=replace(engine.vllm, memory_share=share))

    def device_bytes(
        self, engine: EngineConfig, *, weights: float, response: float, num_responses: int, gpu: float
    ) -> float:
        """Weights and `kv_cache_gb`, if that is set."""
        if engine.vllm.kv_cache_gb is not None:
            return weights / engine.vllm.tensor_parallel_size + engine.vllm.kv_cache_gb * 2**30
        return super().device_bytes(engine, weights=weights, response=response, num_responses=num_responses, gpu=gpu)

    def max_sequence(self, config: ExperimentConfig) -> int:
        """What the engine is started for."""
        return longest_sequence(config)

    def transfer_check(self, engine: EngineConfig) -> TransferCheck:
        """As configured."""
        return TransferCheck(tolerance=engine.vllm.sync_tolerance, field="engine.vllm.sync_tolerance")

    def open(
        self,
        model: Any,
        *,
        config: ExperimentConfig,
        agent: str,
        initial: Path,
        eos_ids: Collection[int],
        pad_id: int,
    ) -> Any:
        """A `VllmSampler`."""
        from hacpo_core.engines.vllm.sampler import VllmSampler  # imports torch

        return VllmSampler(
            model,
            initial=initial,
            engine=config.engine,
            rollout=config.rollout,
            max_tokens=self.max_sequence(config),
            eos_ids=eos_ids,
        )


def _why_not_shared(config: ExperimentConfig) -> str | None:
    """Why the engine cannot run in the agent's process, or None if it can."""
    vllm, remedy = config.engine.vllm, "set engine.vllm.process=own"
    if config.engine.learner == "deepspeed":
        return (
            "engine.vllm.process: got shared with engine.learner=deepspeed, but each needs its own process group; "
            f"{remedy}"
        )
    if vllm.tensor_parallel_size > 1:
        return f"engine.vllm.tensor_parallel_size: got {vllm.tensor_parallel_size} in one process; {remedy}"
    num_here = len(config.pair.agents) if config.placement.kind == "local" else 1
    if vllm.sleeps and config.engine.device != "cpu" and num_here > 1:
        return (
            "engine.vllm.sleeps: got true, but only one engine per process can sleep and "
            f"{num_here} agents share this process; {remedy} or engine.vllm.sleeps=false"
        )
    return None
