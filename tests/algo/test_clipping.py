"""Bounds of ratios, and the surrogate on every side of them."""

import math

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.clipping import UNBOUNDED, Bounds, clipped_surrogate, cross_bounds, is_stopped, own_bounds

BOUNDS = Bounds(0.8, 1.25)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def surrogate_and_gradient(
    ratio: float, advantage: float, bounds: Bounds, *, is_pessimistic: bool
) -> tuple[float, float]:
    ratio_B = tensor(ratio).requires_grad_()
    value_B = clipped_surrogate(ratio_B, tensor(advantage), bounds, is_pessimistic=is_pessimistic)
    (gradient_B,) = torch.autograd.grad(value_B.sum(), ratio_B)
    return value_B.item(), gradient_B.item()


def test_own_bounds_lie_unequally_around_one() -> None:
    assert own_bounds(low=3e-4, high=4e-4) == pytest.approx((0.9997, 1.0004), abs=1e-15)


@pytest.mark.parametrize(
    ("update", "floor"), [(0, 0.8), (1, 0.825), (3, 0.875), (7, 0.975), (8, 1.0), (9, 1.0), (100, 1.0)]
)
def test_cross_floor_rises_with_every_update_and_stops_at_one(update: int, floor: float) -> None:
    bounds = cross_bounds(floor=0.8, step=0.025, update=update)
    assert bounds.floor == pytest.approx(floor, abs=1e-15)
    assert bounds.floor <= 1.0
    assert bounds.ceiling == 1.0


def test_cross_bounds_without_steps_stay() -> None:
    assert cross_bounds(floor=0.9, step=0.0, update=15) == (0.9, 1.0)


# ratio, advantage: (value, gradient) with the minimum, then without
CASES = [
    (1.0, 2.0, (2.0, 2.0), (2.0, 2.0)),
    (1.0, -2.0, (-2.0, -2.0), (-2.0, -2.0)),
    (1.5, 2.0, (2.5, 0.0), (2.5, 0.0)),
    (1.5, -2.0, (-3.0, -2.0), (-2.5, 0.0)),
    (0.5, 2.0, (1.0, 2.0), (1.6, 0.0)),
    (0.5, -2.0, (-1.6, 0.0), (-1.6, 0.0)),
]


@pytest.mark.parametrize(("ratio", "advantage", "pessimistic", "plain"), CASES)
def test_minimum_acts_only_where_it_lowers_the_objective(
    ratio: float, advantage: float, pessimistic: tuple[float, float], plain: tuple[float, float]
) -> None:
    assert surrogate_and_gradient(ratio, advantage, BOUNDS, is_pessimistic=True) == pessimistic
    assert surrogate_and_gradient(ratio, advantage, BOUNDS, is_pessimistic=False) == plain


@pytest.mark.parametrize(("ratio", "advantage", "pessimistic", "plain"), CASES)
def test_stopped_is_where_the_gradient_is_gone(
    ratio: float, advantage: float, pessimistic: tuple[float, float], plain: tuple[float, float]
) -> None:
    for expected, is_pessimistic in ((pessimistic, True), (plain, False)):
        found = is_stopped(tensor(ratio), tensor(advantage), BOUNDS, is_pessimistic=is_pessimistic)
        assert found.item() is (expected[1] == 0.0)


def test_ratio_on_a_bound_still_learns() -> None:
    for ratio in BOUNDS:
        for is_pessimistic in (True, False):
            assert surrogate_and_gradient(ratio, 2.0, BOUNDS, is_pessimistic=is_pessimistic) == (2.0 * ratio, 2.0)
            assert not is_stopped(tensor(ratio), tensor(2.0), BOUNDS, is_pessimistic=is_pessimistic).item()


def test_without_bounds_the_surrogate_is_the_plain_product() -> None:
    assert surrogate_and_gradient(math.exp(3), -2.0, UNBOUNDED, is_pessimistic=False) == pytest.approx(
        (-2 * math.exp(3), -2.0)
    )


def test_noise_of_a_sampler_moves_few_decisions_on_partners_rows_and_many_on_own_ones() -> None:
    """So partners' rows keep the sampler's values, and own rows take the learner's: .018 nats a token, as measured."""
    random = torch.Generator().manual_seed(0)
    noise_BT = 0.018 * torch.randn(4000, 1200, generator=random, dtype=torch.float64)
    noise_B = noise_BT.mean(dim=1)
    for bounds, spread, most, least in (
        (cross_bounds(floor=0.8, step=0.025, update=0), 0.25, 0.003, 0.0),
        (own_bounds(low=3e-4, high=4e-4), 2e-4, 1.0, 0.2),
    ):
        log_ratio_B = spread * torch.randn(4000, generator=random, dtype=torch.float64)
        signs_B = torch.where(torch.arange(4000) % 2 == 0, 1.0, -1.0).double()
        decisions = [
            is_stopped((log_ratio_B + shift).exp(), signs_B, bounds, is_pessimistic=bounds.ceiling > 1)
            for shift in (torch.zeros(4000), noise_B)
        ]
        share = (decisions[0] != decisions[1]).double().mean().item()
        assert least <= share <= most
