"""What each sampler declares of itself, for checks, plans and memory estimates. Does not import torch.

`Agent` opens the sampler itself, an `engines.sampling.base.Sampler`.
"""

from dataclasses import dataclass
from typing import ClassVar

from hacpo_core.config.engine import AUTO, EngineConfig
from hacpo_core.config.schema import ExperimentConfig


@dataclass(frozen=True, slots=True)
class TransformersKind:
    """Samples in the learner, with its weights; between calls it holds nothing."""

    title: ClassVar[str] = "transformers"
    """its name in messages"""
    shares_weights: ClassVar[bool] = True
    """whether it samples from the learner's own weights, instead of a copy in processes of its own"""

    def why_unfit(self, config: ExperimentConfig) -> str | None:
        """Why it cannot work in this configuration, as "field: got ..., expected ...; remedy"; None if it can."""
        return None

    def asleep_gib(self, engine: EngineConfig) -> float:
        """GPU memory that it holds after `rest`, GiB, beside the context of a process of its own."""
        return 0.0

    def gpus_per_process(self, engine: EngineConfig) -> int:
        """GPUs that each process of an agent needs, at least 1; a CPU device needs none."""
        return 1

    def samples_as_learner(self, engine: EngineConfig) -> bool:
        """Whether its log-probabilities are the learner's own, to a rounding that no clip range sees.

        In float32 they are; in bfloat16, log-probabilities depend on the shape of the pass.
        """
        return engine.dtype == "float32"

    def device_bytes(
        self, engine: EngineConfig, *, weights: float, response: float, num_responses: int, gpu: float
    ) -> float:
        """Bytes on each of its GPUs while it samples, beside the learner's.

        Args:
            engine: the section.
            weights: bytes of all weights.
            response: bytes of the KV cache of the longest prompt and response.
            num_responses: sampled at a time.
            gpu: bytes of one GPU.
        """
        return num_responses * response


@dataclass(frozen=True, slots=True)
class VllmKind(TransformersKind):
    """vLLM, in processes of its own, with a copy of the learner's weights. Its options are `engine.vllm`."""

    title = "vLLM"
    shares_weights = False

    def why_unfit(self, config: ExperimentConfig) -> str | None:
        """Memory share and filtered sampling."""
        rollout, share = config.rollout, config.engine.vllm.memory_share
        if share != AUTO and not (isinstance(share, float | int) and 0 < share <= 1):
            return f"engine.vllm.memory_share: got {share!r}, expected {AUTO} or a number in (0, 1]"
        if share == AUTO and config.engine.device == "cpu":
            return (
                f"engine.vllm.memory_share: got {AUTO} with engine.device=cpu, for which it is not computed; set a "
                "number"
            )
        if rollout.top_p < 1 and rollout.temperature != 1:
            return (
                f"rollout.top_p: got {rollout.top_p} with rollout.temperature {rollout.temperature}, for which vLLM "
                "does not report the policy's log-probabilities; set rollout.top_p=1, rollout.temperature=1 or "
                "engine.sampler=transformers"
            )
        return None

    def asleep_gib(self, engine: EngineConfig) -> float:
        """An assumption: CUDA graphs stay while an engine sleeps."""
        return 0.0 if engine.device == "cpu" else 0.5 if engine.vllm.enforce_eager else 1.5

    def gpus_per_process(self, engine: EngineConfig) -> int:
        """Those over which tensors are split."""
        return engine.vllm.tensor_parallel_size

    def samples_as_learner(self, engine: EngineConfig) -> bool:
        """Never: its kernels differ."""
        return False

    def device_bytes(
        self, engine: EngineConfig, *, weights: float, response: float, num_responses: int, gpu: float
    ) -> float:
        """Its share of the GPU, or weights and `kv_cache_gb`; while the share is auto, weights and one response."""
        vllm = engine.vllm
        if vllm.kv_cache_gb is not None:
            return weights / vllm.tensor_parallel_size + vllm.kv_cache_gb * 2**30
        if vllm.memory_share != AUTO:
            return float(vllm.memory_share) * gpu
        return (weights + response) / vllm.tensor_parallel_size


SAMPLERS = {"transformers": TransformersKind(), "vllm": VllmKind()}
"""by the value of `engine.sampler`"""


def sampler_of(engine: EngineConfig) -> TransformersKind:
    """The declaration of the configured sampler."""
    return SAMPLERS[engine.sampler]
