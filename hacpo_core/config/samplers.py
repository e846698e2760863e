"""Samplers: what each one declares, and how `engine.sampler` finds it. Does not import torch.

Checks, plans, memory estimates and placements ask the declaration. Only `SamplerKind.open` loads the engine.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hacpo_core.config.engine import AUTO, EngineConfig
from hacpo_core.config.schema import ExperimentConfig
from hacpo_core.config.user_classes import user_class

SHIPPED: Mapping[str, str] = {
    "transformers": "hacpo_core.engines.sampling.transformers_kind:TransformersKind",
    "vllm": "hacpo_core.engines.vllm.kind:VllmKind",
}
"""class of each shipped sampler, as `module:Class`; engines lie above this layer, so they are imported when asked"""


@dataclass(frozen=True, slots=True)
class TransferCheck:
    """Limits of the comparison of sampler and learner after a transfer of weights (`Agent.check_sampler`).

    Attributes:
        num_tokens: smallest number of tokens whose log-probabilities are compared, at least 1.
        tolerance: largest mean difference, nats.
        bound: largest difference of one token, nats.
        field: configuration field of the tolerance, for messages.
    """

    num_tokens: int = 256
    tolerance: float = 1e-3
    bound: float = 2.0
    field: str = "engine.sampler_options.sync_tolerance"


@dataclass(frozen=True)
class SamplerKind(ABC):
    """What a sampler declares of itself: a frozen dataclass, whose fields are the options of the sampler.

    `engine.sampler` names it, by its name in `SHIPPED` or as `package.module:Class`; `engine.sampler_options` sets its
    fields (`hacpo_core.config.fields.setting`). Methods whose argument is `engine` ask one section, the others all of
    the configuration. The defaults are those of an engine in the agent's process with a copy of the weights on one GPU.

    `open` returns an object with a `name` and the methods of `hacpo_core.engines.sampling.base.Sampler`:

    `sample(requests, limits, *, stop_ids=())` returns a `Sampled`, one response per request, in their order. A response
    depends on the weights and on its own request alone (`prompt_ids`, `seed` in [0, 2**64)): not on the other requests,
    nor on earlier calls, so that a run that is killed and resumed samples the same. Of each response it gives

        token ids           int32, 1 to `request.token_limit(limits)` of them; one of `eos_ids` or `stop_ids` ends the
                            response and is its last token
        log-probabilities   float32, nats, one per token: log softmax(logits / limits.temperature), before min_p, top_k
                            and top_p. nan where the engine cannot report them, which only evaluations accept
        is_cut              whether it reached the limit without an end

    With `limits.is_greedy`, each token is the likeliest one. `synchronise(version, check)` loads the learner's current
    weights and calls `check`, unless the engine has this version already; it comes before every group of calls of
    `sample`. `rest()` releases device memory until the next `synchronise`; `close()` ends all that was started. A
    failure is an `EngineError`: the agent is then restored with a new sampler.
    """

    title: ClassVar[str] = "the sampler"
    """its name in messages"""
    shares_weights: ClassVar[bool] = False
    """whether it samples from the learner's own weights instead of a copy"""
    asleep_gib: ClassVar[float] = 0.0
    """GPU memory that it holds after `rest`, GiB, beside the context of a process of its own"""
    memory_share_field: ClassVar[str] = "engine.sampler_options.memory_share"
    """configuration field of `gpu_share`, for messages"""
    num_gpus_field: ClassVar[str] = "engine.sampler_options.num_gpus"
    """configuration field of `gpus_per_process`, for messages"""

    def why_unfit(self, config: ExperimentConfig) -> str | None:
        """Why it cannot work in this configuration, as "field: got ..., expected ...; remedy"; None if it can."""
        return None

    def gpus_per_process(self, engine: EngineConfig) -> int:
        """GPUs that each process of an agent needs, at least 1; a CPU device needs none."""
        return 1

    def has_own_process(self, engine: EngineConfig) -> bool:
        """Whether it runs in processes of its own, so that weights are copied through host memory."""
        return False

    def samples_as_learner(self, engine: EngineConfig) -> bool:
        """Whether its log-probabilities are the learner's own, to a rounding that no clip range sees."""
        return False

    def can_sleep(self, engine: EngineConfig) -> bool:
        """Whether `rest` releases its device memory."""
        return False

    def needs_plain_segments(self, engine: EngineConfig) -> bool:
        """Whether the learner's process must do without torch's expandable segments: no engine sleeps beside them."""
        return not self.shares_weights and self.can_sleep(engine) and not self.has_own_process(engine)

    def gpu_share(self, engine: EngineConfig) -> float | str | None:
        """Share of a GPU that it takes, in (0, 1]; auto: planning computes it; None: it takes what it needs."""
        return None

    def with_gpu_share(self, engine: EngineConfig, share: float | str) -> EngineConfig:
        """The section with another share of a GPU; by default in the field `memory_share` of this class."""
        options: dict[str, Any] = {"memory_share": share}
        return replace(engine, sampler_options=replace(self, **options))

    def device_bytes(
        self, engine: EngineConfig, *, weights: float, response: float, num_responses: int, gpu: float
    ) -> float:
        """Bytes on each of its GPUs while it samples, beside the learner's.

        By default its share of the GPU. Without one, a copy of the weights, unless it shares the learner's, and the KV
        cache of the responses; with a share that is still auto, of one response.

        Args:
            engine: the section.
            weights: bytes of all weights.
            response: bytes of the KV cache of the longest prompt and response.
            num_responses: sampled at a time.
            gpu: bytes of one GPU.
        """
        share = self.gpu_share(engine)
        if share is not None and share != AUTO:
            return float(share) * gpu
        copy = 0.0 if self.shares_weights else weights
        return (copy + (num_responses if share is None else 1) * response) / self.gpus_per_process(engine)

    def max_sequence(self, config: ExperimentConfig) -> int | None:
        """Most tokens of a prompt and its response together that it can take; None: as many as the model."""
        return None

    def transfer_check(self, engine: EngineConfig) -> TransferCheck:
        """Limits of the comparison that `synchronise` calls."""
        return TransferCheck()

    @abstractmethod
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
        """Start the sampler of an agent; only here torch and the engine are imported.

        Args:
            model: the learner's `PreTrainedModel`, whose weights change in place.
            config: the experiment's.
            agent: name of the agent.
            initial: folder of its initial model, with its tokenizer.
            eos_ids: all ids that end a response.
            pad_id: id for padding.

        Returns:
            a `hacpo_core.engines.sampling.base.Sampler`, which lies above this layer.

        Raises:
            EngineError: the engine is not installed or cannot start.
        """


def find_sampler(name: str) -> type[SamplerKind]:
    """The class of the sampler with this name.

    Raises:
        ConfigError: the name is unknown, cannot be imported, or is not a sampler's.
    """
    if name not in SHIPPED:
        return user_class("engine.sampler", name, SamplerKind, shipped=SHIPPED)  # type: ignore[type-abstract]
    module, _, attribute = SHIPPED[name].partition(":")
    kind: type[SamplerKind] = getattr(importlib.import_module(module), attribute)
    return kind


def sampler_of(engine: EngineConfig) -> SamplerKind:
    """The declaration of the configured sampler, with its options.

    Raises:
        ConfigError: see `find_sampler`.
    """
    kind = find_sampler(engine.sampler)
    return engine.sampler_options if isinstance(engine.sampler_options, kind) else kind()
