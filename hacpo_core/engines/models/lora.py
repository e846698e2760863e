"""Low-rank adapters (peft): added to a model, disabled for its reference, merged for samplers and saving.

    W' = W + alpha / rank * B A

The adapters are inside transformers' own model class, so code that uses the model needs no change. Only A and B are
trained; W is never changed. Only this file imports peft.
"""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hacpo_core.config import LoraConfig
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.passes.layouts import ForwardPass
from hacpo_core.engines.passes.logprobs import TokenScores
from hacpo_core.engines.passes.scoring import ScoringHead, scoring_head
from hacpo_core.errors import EngineError
from hacpo_core.seeds import derive_seed

ADAPTER = "default"


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed_parts: tuple[int | str, ...]) -> None:
    """Freeze the model's weights and add adapters, in place. At first, they do not change the model's outputs.

    Args:
        model: gets the adapters, in its dtype and on its device.
        config: rank > 0.
        seed_parts: determine the random A of every adapter; B is 0.

    Raises:
        EngineError: peft is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise EngineError(
            f"engine.lora: peft cannot be imported ({error}); pip install 'hacpo[lora]', or set engine.lora.rank=0"
        ) from error
    options = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # peft accepts floats
        target_modules="all-linear",  # but the output embedding: scores use its weight directly
        task_type="CAUSAL_LM",
    )
    peft.inject_adapter_in_model(options, model, ADAPTER)
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            bound = 1 / math.sqrt(parameter.shape[1])
            random = torch.Generator().manual_seed(derive_seed(*seed_parts, name) % 2**63)
            with torch.no_grad():
                parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=random))


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Disable the adapters temporarily."""
    layers = _adapted_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@dataclass(frozen=True, slots=True)
class BaseHead(ScoringHead):
    """Scores with a model's frozen weights: the reference of a model with adapters, without extra memory."""

    def scores(
        self, forward: ForwardPass, *, temperature: float, chunk_mb: int, has_entropy_gradient: bool = False
    ) -> TokenScores:
        """As `ScoringHead.scores`, without the adapters."""
        with without_adapters(self.model):
            return ScoringHead.scores(
                self, forward, temperature=temperature, chunk_mb=chunk_mb, has_entropy_gradient=has_entropy_gradient
            )


def base_head(model: PreTrainedModel) -> BaseHead:
    """The head that scores without the adapters."""
    return BaseHead(model, scoring_head(model).is_linear)


def merged_parts(model: nn.Module, named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[TensorPart]:
    """Weights with the adapters merged, under their names without adapters; each is computed when it is read.

    Sums are computed in fp32 and rounded once, and the model does not change. Without adapters, the weights are passed
    on unchanged.

    Args:
        model: with or without adapters.
        named_tensors: its named parameters or state.
    """
    layers = _adapted_layers(model)
    for name, tensor in named_tensors:
        if ".lora_A." in name or ".lora_B." in name:
            continue
        owner, mark, leaf = name.partition(".base_layer.")
        read = partial(merged_weight, layers[owner], tensor) if mark and leaf == "weight" else tensor.detach
        yield TensorPart(f"{owner}.{leaf}" if mark else name, tensor.dtype, tuple(tensor.shape), read)


@torch.no_grad()
def merged_weight(layer: Any, weight: Tensor) -> Tensor:
    """A layer's weight plus its adapters."""
    share: Tensor = layer.lora_B[ADAPTER].weight.float() @ layer.lora_A[ADAPTER].weight.float() * layer.scaling[ADAPTER]
    if layer.fan_in_fan_out:  # GPT-2's layers store their weight transposed
        share = share.T
    return (weight.float() + share).to(weight.dtype)


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write an ordinary Hugging Face model folder, with adapters merged."""
    state = None
    if _adapted_layers(model):
        adapted = {f"{name}.weight" for name in _adapted_layers(model)}
        parts = merged_parts(model, model.state_dict().items())
        # transformers takes all weights at once, so the merged ones go to the host.
        state = {part.name: part.read().cpu() if part.name in adapted else part.read() for part in parts}
    # Accelerate imports DeepSpeed here if it is installed, which would warn on a machine without a GPU. With one, its
    # own choice is kept for learners on the GPU: this model may be on the CPU.
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    model.save_pretrained(folder, state_dict=state, safe_serialization=True)
