"""The terms of the objectives and the weights of rows, by hand.

Shapes: B sequence, T token.
"""

import math

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.clipping import UNBOUNDED, Bounds
from hacpo_core.algo.objectives import cross_surrogate, gated_surrogate, kl_to_reference, sequence_weights
from hacpo_core.methods.objectives.token_clip import TokenClip

BOUNDS = Bounds(0.8, 1.0)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def cross(
    ratio: float,
    advantage: float,
    weight: float,
    exponent: float,
    bounds: Bounds = BOUNDS,
    *,
    is_pessimistic: bool = False,
) -> tuple[float, float]:
    """Value, and gradient with respect to the ratio."""
    ratio_B = tensor(ratio).requires_grad_()
    value_B = cross_surrogate(
        ratio_B, tensor(advantage), tensor(weight), exponent=exponent, bounds=bounds, is_pessimistic=is_pessimistic
    )
    (gradient_B,) = torch.autograd.grad(value_B.sum(), ratio_B)
    return value_B.item(), gradient_B.item()


def test_cross_surrogate_multiplies_ratio_its_power_weight_and_advantage() -> None:
    # 0.9 * 0.9 * 1.5 * 2; the gradient stops at the power: 0.9 * 1.5 * 2, where its full derivative is 5.4
    assert cross(0.9, 2.0, 1.5, 1.0) == pytest.approx((2.43, 2.7), abs=1e-14)


@pytest.mark.parametrize(("exponent", "value"), [(0.0, 2.7), (1.0, 2.43), (2.0, 2.187), (3.0, 1.9683), (0.5, 2.561445)])
def test_exponent_discounts_responses_that_the_learner_finds_unlikely(exponent: float, value: float) -> None:
    found, gradient = cross(0.9, 2.0, 1.5, exponent)
    assert found == pytest.approx(value, abs=1e-5)
    assert gradient == pytest.approx(value / 0.9, abs=1e-5)


def test_the_power_is_of_the_clipped_ratio() -> None:
    # below the floor 0.8 * 0.8^3 * 1.5 * 2, above the ceiling 1 * 1^3 * 1.5 * 2, inside 0.9 * 0.9^3 * 1.5 * 2
    assert cross(0.5, 2.0, 1.5, 3.0) == pytest.approx((1.2288, 0.0), abs=1e-14)
    assert cross(math.exp(10), 2.0, 1.5, 3.0) == (3.0, 0.0)
    assert cross(0.9, 2.0, 1.5, 3.0) == pytest.approx((1.9683, 2.187), abs=1e-14)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("ratio", [1.2, 0.7])
def test_cross_ratio_outside_its_bounds_is_discarded_with_either_sign(ratio: float, advantage: float) -> None:
    assert cross(ratio, advantage, 1.0, 0.0)[1] == 0.0


def test_cross_surrogate_takes_no_minimum_unless_asked() -> None:
    assert cross(1.2, -2.0, 1.5, 0.0) == pytest.approx((-3.0, 0.0), abs=1e-15)
    assert cross(1.2, -2.0, 1.5, 0.0, is_pessimistic=True) == pytest.approx((-3.6, -3.0), abs=1e-15)


def test_cross_surrogate_without_bounds_keeps_every_gradient() -> None:
    assert cross(3.0, -2.0, 0.5, 1.0, UNBOUNDED) == pytest.approx((-9.0, -3.0), abs=1e-14)


def test_kl_is_schulmans_k3_estimate() -> None:
    # d = log 2: 2 - log 2 - 1; d = -log 2: 1/2 + log 2 - 1; the wrong direction swaps the two
    logprob_BT, reference_BT = tensor(-2.0, -1.0)[None], tensor(-2.0 + math.log(2), -1.0 - math.log(2))[None]
    found_BT = kl_to_reference(logprob_BT, reference_BT)
    assert found_BT[0].tolist() == pytest.approx([0.3068528194400547, 0.1931471805599453], abs=1e-15)


def test_kl_ends_at_ten_nats_and_has_no_gradient_beyond() -> None:
    # d = 2: 7.389056 - 3; d = 2.7: 14.879732 - 3.7 = 11.18, so 10; d = 25: 10.
    # d = -10.5: 0.0000275 + 9.5; d = -12: 11.000006, so 10; d = -25: 20 nats of log-ratio are left, so 10.
    difference_BT = tensor(2.0, 2.7, 25.0, -10.5, -12.0, -25.0)[None]
    logprob_BT = tensor(-1.0, -1.0, -30.0, -1.0, -1.0, -1.0)[None].requires_grad_()
    found_BT = kl_to_reference(logprob_BT, logprob_BT.detach() + difference_BT)
    found_BT.sum().backward()
    assert found_BT[0].tolist() == pytest.approx([4.389056, 10.0, 10.0, 9.5000275, 10.0, 10.0], abs=1e-6)
    assert logprob_BT.grad is not None
    assert logprob_BT.grad[0].tolist() == pytest.approx([-6.389056, 0.0, 0.0, 0.9999725, 0.0, 0.0], abs=1e-6)


def test_gradient_of_the_kl_pulls_towards_the_reference() -> None:
    logprob_BT = tensor(-2.0, -1.0, -3.0)[None].requires_grad_()
    kl_to_reference(logprob_BT, tensor(-2.0 + math.log(2), -1.0 - math.log(2), -3.0)[None]).sum().backward()
    assert logprob_BT.grad is not None
    assert logprob_BT.grad[0].tolist() == pytest.approx([-1.0, 0.5, 0.0], abs=1e-15)  # 1 - exp(d)


def test_temperature_of_a_gate_is_as_exact_as_the_ratio() -> None:
    ratio, tau = 1.5, 1.05  # in float32 tau is 1.04999995
    found = gated_surrogate(tensor(ratio), tensor(-1.0), positive=1.0, negative=tau)
    assert found.item() == pytest.approx(-4 / tau / (1 + math.exp(-tau * (ratio - 1))), abs=1e-14)


SOURCES = torch.tensor([0, 1, 0, 0, 2])
"""of five rows"""


def test_sum_of_means_gives_every_source_the_same_total_weight() -> None:
    assert sequence_weights(SOURCES).tolist() == pytest.approx([1 / 3, 1.0, 1 / 3, 1 / 3, 1.0], abs=1e-15)
    pair = torch.tensor([0, 1, 0, 1])  # Naive: twice the gradient of one mean over the pooled rows
    assert torch.equal(sequence_weights(pair), 2 * sequence_weights(torch.zeros_like(pair)))


def test_one_group_gives_every_row_the_same_weight() -> None:
    assert sequence_weights(torch.zeros_like(SOURCES)).tolist() == [0.2] * 5


TOKEN_WEIGHTS = [
    ("token_mean", [1 / 6, 1 / 5, 1 / 6], [1 / 11] * 3),
    ("seq_mean_token_mean", [1 / 4, 1 / 5, 1 / 8], [1 / 6, 1 / 15, 1 / 12]),
    ("seq_mean_token_sum_norm", [1 / 20, 1 / 10, 1 / 20], [1 / 30] * 3),
]


@pytest.mark.parametrize(("token_aggregation", "within_sources", "over_all"), TOKEN_WEIGHTS)
def test_weight_of_a_token(token_aggregation: str, within_sources: list[float], over_all: list[float]) -> None:
    sources, lengths = torch.tensor([3, 1, 3]), torch.tensor([2, 5, 4])
    for aggregation, expected in (("sum_of_means", within_sources), ("mean_of_rows", over_all)):
        objective = TokenClip(aggregation=aggregation, token_aggregation=token_aggregation)
        found = objective.row_weights(sources, lengths, max_tokens=10)
        assert found.tolist() == pytest.approx(expected, abs=1e-15)
