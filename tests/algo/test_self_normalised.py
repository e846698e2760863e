"""Ratios relative to the pair's common factor, and their bounds: hand numbers, gradient, invariance, limit c = 0."""

import math

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.clipping import cross_bounds, mirrored_cross_bounds
from hacpo_core.algo.ratios import log_center, self_normalised_ratio, sequence_ratio

MASK = torch.tensor([[True, True, True], [True, True, False]])


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


LOGPROBS = tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 0.0]])  # means -2 and -1 over the rows' own tokens


def test_center_is_the_mean_of_the_windows_means() -> None:
    assert log_center([-0.5]) == -0.5
    assert log_center([-1.0, -0.5, 0.3]) == pytest.approx(-0.4, abs=1e-15)


def test_ratio_is_divided_by_the_pairs_factor() -> None:
    # log s = -2 + 1 = -1 and -1 + 0.5 = -0.5; c = -1 leaves 0 and 0.5
    found = self_normalised_ratio(LOGPROBS, MASK, tensor([-1.0, -0.5]), tensor([-1.0, -1.0]))
    assert found.tolist() == pytest.approx([1.0, math.exp(0.5)], abs=1e-15)


def test_center_of_zero_is_the_plain_ratio_to_the_bit() -> None:
    logprob_BT, old_B = torch.randn(64, 7).log_softmax(1), torch.randn(64)
    mask_BT = torch.ones(64, 7, dtype=torch.bool)
    found = self_normalised_ratio(logprob_BT, mask_BT, old_B, torch.zeros(64))
    assert torch.equal(found, sequence_ratio(logprob_BT, mask_BT, old_B))


def test_factor_common_to_all_ratios_of_a_pair_changes_nothing() -> None:
    old_B, center_B = tensor([-1.0, -0.5]), tensor([-0.75, -0.75])
    plain = self_normalised_ratio(LOGPROBS, MASK, old_B, center_B)
    # s times e^-3: each row's old mean is 3 higher, and the mean of log s 3 lower
    shifted = self_normalised_ratio(LOGPROBS, MASK, old_B + 3.0, center_B - 3.0)
    torch.testing.assert_close(shifted, plain, rtol=1e-14, atol=0.0)
    assert (sequence_ratio(LOGPROBS, MASK, old_B + 3.0) < plain / 5).all(), "the plain ratio does change"


def test_far_ratio_is_clamped_after_the_center_is_subtracted() -> None:
    # log s = -1 - 14 = -15; with c = -14 it is -1, not -10 + 14
    found = self_normalised_ratio(tensor([[-15.0]]), torch.tensor([[True]]), tensor([0.0]), tensor([-14.0]))
    assert found.tolist() == pytest.approx([math.exp(-1.0)])
    found = self_normalised_ratio(tensor([[-15.0]]), torch.tensor([[True]]), tensor([0.0]), tensor([0.0]))
    assert found.tolist() == pytest.approx([math.exp(-10.0)])


def test_gradient_is_the_ratio_over_the_rows_length() -> None:
    logprob_BT = LOGPROBS.clone().requires_grad_()
    self_normalised_ratio(logprob_BT, MASK, tensor([-1.0, -0.5]), tensor([-1.0, -1.0])).sum().backward()
    assert logprob_BT.grad is not None
    assert logprob_BT.grad[0].tolist() == pytest.approx([1 / 3] * 3)
    assert logprob_BT.grad[1].tolist() == pytest.approx([math.exp(0.5) / 2, math.exp(0.5) / 2, 0.0])


@pytest.mark.parametrize(
    ("update", "floor", "ceiling"), [(0, 0.8, 1.2), (3, 0.875, 1.125), (8, 1.0, 1.0), (100, 1.0, 1.0)]
)
def test_mirrored_bounds_close_around_one_from_both_sides(update: int, floor: float, ceiling: float) -> None:
    bounds = mirrored_cross_bounds(floor=0.8, step=0.025, update=update)
    assert bounds == (pytest.approx(floor, abs=1e-15), pytest.approx(ceiling, abs=1e-15))
    assert bounds.floor == cross_bounds(floor=0.8, step=0.025, update=update).floor
