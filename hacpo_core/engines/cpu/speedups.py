"""The switch of what makes a CPU faster, `engine.speedups`, and the functions that it switches.

With the switch off, the work is left to public torch and transformers, and so it is on other devices and in other
dtypes. The fast decoder (`hacpo_core.engines.sampling.llama_decoder`) has the same switch.

Shapes: N row, I input, O output, R row, L place in a row, H head, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from hacpo_core.engines.cpu.attention import SHORT, causal_by_products, is_precise
from hacpo_core.engines.cpu.products import OneDnnLinear, filled_length, pays, product, use_onednn

_is_on = True


def use_speedups(is_on: bool) -> None:
    """Set the switch for this process, to `engine.speedups` of the loaded agent."""
    global _is_on
    _is_on = is_on


def is_switched_on() -> bool:
    """Whether the switch is on in this process."""
    return _is_on


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
