"""What sampling with transformers declares of itself. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hacpo_core.config import EngineConfig, ExperimentConfig
from hacpo_core.config.samplers import SamplerKind


@dataclass(frozen=True)
class TransformersKind(SamplerKind):
    """In the learner, with its weights."""

    title = "transformers"
    shares_weights = True

    def samples_as_learner(self, engine: EngineConfig) -> bool:
        """In float32; in bfloat16, log-probabilities depend on the shape of the pass."""
        return engine.dtype == "float32"

    def can_sleep(self, engine: EngineConfig) -> bool:
        """Between calls it holds nothing."""
        return True

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
        """A `TransformersSampler`."""
        from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler  # imports torch

        return TransformersSampler(
            model,
            eos_ids=eos_ids,
            pad_id=pad_id,
            batch_size=config.rollout.batch_size,
            has_wide_head=config.engine.head_dtype == "float32",
        )
