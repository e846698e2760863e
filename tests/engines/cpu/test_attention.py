"""Attention by two products is torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hacpo_core.engines.cpu.attention import by_products, causal_by_products, is_precise


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_two_products_are_torchs_fused_attention(is_masked: bool, scaling: float | None) -> None:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, length, 8, generator=random, dtype=torch.float64) for length in (4, 7, 7))
    mask = torch.zeros(3, 1, 1, 7, dtype=torch.float64)
    mask[1, :, :, :3] = -torch.inf
    given = mask if is_masked else None
    expected = functional.scaled_dot_product_attention(query, key, value, given, scale=scaling)
    torch.testing.assert_close(by_products(query, key, value, given, scaling), expected, rtol=0.0, atol=1e-12)


def test_values_may_be_wider_or_narrower_than_keys() -> None:
    random = torch.Generator().manual_seed(0)
    heads, width = {"query": 4, "key": 2, "value": 2}, {"query": 8, "key": 8, "value": 5}
    parts = [torch.randn(3, heads[n], 6, width[n], generator=random, dtype=torch.float64) for n in heads]
    expected = functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(causal_by_products(*parts, None), expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, True), (torch.bfloat16, False), (torch.float16, False)]
)
def test_narrow_dtypes_keep_the_kernel_that_sums_in_fp32(dtype: torch.dtype, expected: bool) -> None:
    assert is_precise(torch.zeros(1, dtype=dtype)) is expected
    assert not is_precise(torch.zeros(1, dtype=dtype, device="meta"))
