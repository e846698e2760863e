"""The seam to `engines/cpu`, which makes a CPU faster; nothing else of the product imports that folder.

`engine.speedups` switches it. With the switch off, the work is left to public torch and transformers, and so it is on
other devices and in other dtypes, except for `fast_decoder`: its decoder serves all of them, with torch's attention.

Shapes: N row, I input, O output, R row, L place in a row, H head, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional

from hacpo_core.engines.cpu.attention import SHORT, causal_by_products, is_precise
from hacpo_core.engines.cpu.products import OneDnnLinear, filled_length, pays, product, use_onednn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hacpo_core.engines.transformers.decoders import Decoder

_is_on = True


def use_speedups(is_on: bool) -> None:
    """Set the switch for this process, to `engine.speedups` of the loaded agent."""
    global _is_on
    _is_on = is_on


def speed_up(model: nn.Module) -> None:
    """Make a loaded model's linear layers use oneDNN where that is faster; parameters and their names do not change."""
    if _is_on:
        use_onednn(model)


def pass_length(model: nn.Module) -> Callable[[int], int] | None:
    """A function from a pass's number of tokens to its padded length; None: this model's passes are not padded.

    oneDNN compiles kernels for each new length, so few lengths are better.
    """
    return filled_length if any(isinstance(module, OneDnnLinear) for module in model.modules()) else None


def linear(value_NI: Tensor, weight_OI: Tensor) -> Tensor:
    """value_NI weight_OI^T, without gradient; the weight may be a transposed view."""
    return product(value_NI, weight_OI) if _is_on and pays(weight_OI) else functional.linear(value_NI, weight_OI)


def causal_attention(query_RHLK: Tensor, key_RHLK: Tensor, value_RHLK: Tensor, options: Any) -> Tensor | None:
    """attended_RLHK of short rows, given the options of transformers' attention; None if torch's kernel is better."""
    if not _is_on or not is_precise(query_RHLK) or query_RHLK.shape[2] > SHORT or options.get("dropout"):
        return None
    return causal_by_products(query_RHLK, key_RHLK, value_RHLK, options.get("scaling"))


def fast_decoder(model: PreTrainedModel, *, has_wide_head: bool = False) -> Callable[[], Decoder]:
    """A factory of decoders that read the model's weights directly; see `decoder_of` for the arguments."""
    from hacpo_core.engines.cpu.llama_decoder import LlamaDecoder  # it imports this module

    return lambda: LlamaDecoder(model, has_wide_head=has_wide_head)


def why_no_fast_decoder(model: PreTrainedModel) -> str | None:
    """Why `fast_decoder` does not serve a model; None if it does."""
    from hacpo_core.engines.cpu.llama_decoder import why_unsupported

    return why_unsupported(model) if _is_on else "engine.speedups is false"
