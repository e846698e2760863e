"""Matrix products with fp32 weights on the CPU, by oneDNN where it is faster than torch's default, MKL.

MKL uses AVX-512 on Intel processors only. oneDNN, which torch includes as well, uses it on others too and is twice as
fast there, but torch calls it only for convolutions and narrower dtypes. `OneDnnLinear`, for training, is therefore a
1x1 convolution. `product`, without gradient, calls the operator to which torch.compile lowers a linear layer. Both sum
in a different order than MKL, so results differ in the last bits (tests: 1e-6 of the norm).

Shapes: N row, I input, O output.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from hacpo_core.errors import first_line

_log = logging.getLogger(__name__)
MIN_CONVOLVED = 2**23
"""smallest number of multiplications for which a convolution is faster"""
MIN_FROZEN = 2**21
"""smallest number of multiplications for which `FrozenLinear` uses oneDNN"""
MAX_TWICE = 2**18
"""largest number of weights of a layer for which the plain copy is kept in addition to the packed one"""
IMAGES = 16
"""number of images into which a layer's rows are split: with one thread, torch leaves fewer images to MKL"""


def pays(weight: Tensor) -> bool:
    """Whether oneDNN is faster than MKL for this weight; on one machine, this depends on its dtype only."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and mkl_is_slow()


@cache
def mkl_is_slow() -> bool:
    """Whether this processor has AVX-512, MKL does not use it, and oneDNN does."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    about = Path("/proc/cpuinfo")
    if not has_both or not about.exists():
        return False
    is_unused = leaves_avx512_unused(about.read_text(encoding="utf-8"), torch.backends.cpu.get_cpu_capability())
    return is_unused and has_operators()


def leaves_avx512_unused(cpuinfo: str, capability: str) -> bool:
    """Whether MKL, which takes AVX-512 on Intel's processors only, leaves it unused.

    Args:
        cpuinfo: text of /proc/cpuinfo.
        capability: of the processor, as torch names it.
    """
    return capability == "AVX512" and "GenuineIntel" not in cpuinfo


def has_operators() -> bool:
    """Whether the two operators, which are not part of torch's public API, exist and work."""
    one, other = torch.ones(3, 16), torch.eye(16)
    try:
        with torch.no_grad():
            if not torch.equal(product(one, packed(other)), one):
                raise RuntimeError("got another product than expected")
        return True
    except (AttributeError, RuntimeError, TypeError) as error:
        _log.warning("torch %s: oneDNN cannot be called, using MKL: %s", torch.__version__, first_line(error))
        return False


class OneDnnLinear(nn.Linear):
    """A linear layer computed as a convolution, with the same parameters and autograd's gradients."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name in nn.Linear
        """See `nn.Linear`. Only multiples of 16 rows (the product of all dimensions but the last) use the fast path."""
        rows = input.numel() // self.in_features
        is_slower = rows % IMAGES != 0 or rows * self.weight.numel() < MIN_CONVOLVED
        if is_slower or not pays(self.weight) or input.dtype != torch.float32:
            return super().forward(input)
        images = input.reshape(IMAGES, rows // IMAGES, 1, self.in_features).permute(0, 3, 1, 2)
        out = functional.conv2d(images, self.weight[:, :, None, None], self.bias)
        return out.permute(0, 2, 3, 1).reshape(*input.shape[:-1], self.out_features)


def use_onednn(model: nn.Module) -> None:
    """Compute a model's linear layers as convolutions where that is faster; parameters and names do not change."""
    for module in model.modules():
        if type(module) is nn.Linear and pays(module.weight):
            module.__class__ = OneDnnLinear


def filled_length(num_tokens: int) -> int:
    """The next larger of 16 lengths per power of two, each an odd multiple of `IMAGES`: even multiples are slower."""
    step = max(2 * IMAGES, 1 << max(0, num_tokens.bit_length() - 5))
    return -(-(num_tokens + IMAGES) // step) * step - IMAGES


@dataclass(slots=True)
class FrozenLinear:
    """A linear layer for many calls without gradient: MKL multiplies few rows, oneDNN many."""

    plain: Tensor | None
    """the weight; None once it is packed, above MAX_TWICE weights"""
    bias: Tensor | None
    packs: bool
    """whether to make a packed copy, which takes memory, at the first call with many rows"""
    fast: Tensor | None = None

    def __call__(self, value_NI: Tensor) -> Tensor:
        """value_NI weight^T + bias."""
        if self.plain is not None and (len(value_NI) * self.plain.numel() < MIN_FROZEN or not pays(self.plain)):
            return functional.linear(value_NI, self.plain, self.bias)
        if self.fast is None:
            assert self.plain is not None
            self.fast = packed(self.plain) if self.packs else self.plain
            if self.packs and self.plain.numel() > MAX_TWICE:
                self.plain = None
        return product(value_NI, self.fast, self.bias)


def packed(weight_OI: Tensor) -> Tensor:
    """A copy in oneDNN's layout: 1.1 times as fast for hundreds of rows, 1.6 times for tens."""
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI, 256)
    return copy


def product(value_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """value_NI weight_OI^T + bias_O by oneDNN, without gradient; the weight may be packed, or a transposed view."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(value_NI, weight_OI, bias_O, "none", [], "")
    return out
