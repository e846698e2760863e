"""Ratios per token and per sequence, also where the two sides have different numbers of tokens.

Shapes: B sequence, T token.
"""

import math

import pytest
import torch
from torch import Tensor

from hacpo_core.algo.ratios import masked_mean, sequence_ratio, token_ratio


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask(*lengths: int) -> Tensor:
    return torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]


def test_mean_runs_over_each_sequences_own_tokens() -> None:
    value_BT = tensor([[-1.0, -2.0, -6.0], [-4.0, 7.0, 7.0]])
    assert masked_mean(value_BT, mask(3, 1)).tolist() == [-3.0, -4.0]


def test_padding_may_hold_anything() -> None:
    value_BT = tensor([[-1.0, -math.inf, math.nan], [-1.0, -2.0, -3.0]])
    assert masked_mean(value_BT, mask(1, 3)).tolist() == [-1.0, -2.0]


def test_sequence_without_tokens_has_mean_zero() -> None:
    assert masked_mean(tensor([[5.0, 5.0]]), torch.zeros(1, 2, dtype=torch.bool)).tolist() == [0.0]


def test_token_ratio_is_current_over_old() -> None:
    ratio_BT = token_ratio(tensor([[math.log(0.5), math.log(0.2)]]), tensor([[math.log(0.25), math.log(0.4)]]))
    assert ratio_BT[0].tolist() == pytest.approx([2.0, 0.5], abs=1e-15)


def test_sequence_ratio_is_the_geometric_mean_of_token_ratios() -> None:
    # current log 0.5, log 0.5; old log 0.25, log 0.5: sqrt(2 * 1), where the plain mean is 1.5 and the product 2
    old_mean = (math.log(0.25) + math.log(0.5)) / 2
    ratio_B = sequence_ratio(tensor([[math.log(0.5), math.log(0.5)]]), mask(2), tensor([old_mean]))
    assert ratio_B.item() == pytest.approx(1.4142135623730951, abs=1e-15)


def test_each_side_is_averaged_over_its_own_number_of_tokens() -> None:
    # The learner reads three tokens of -1, -2, -3, the source sampled two whose mean is -1.5.
    ratio_B = sequence_ratio(tensor([[-1.0, -2.0, -3.0]]), mask(3), tensor([-1.5]))
    assert ratio_B.item() == pytest.approx(0.6065306597126334, abs=1e-15)


def test_gradient_of_the_sequence_ratio_is_shared_by_its_tokens() -> None:
    logprob_BT = tensor([[-1.0, -2.0, -3.0, 0.0]]).requires_grad_()
    sequence_ratio(logprob_BT, mask(4) & torch.tensor([[True, True, True, False]]), tensor([-2.0])).sum().backward()
    assert logprob_BT.grad is not None
    assert logprob_BT.grad[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0], abs=1e-15)


@pytest.mark.parametrize(("log_ratio", "bounded"), [(9.0, 9.0), (12.0, 10.0), (-9.0, -9.0), (-40.0, -10.0)])
def test_log_ratio_is_bounded_by_ten(log_ratio: float, bounded: float) -> None:
    logprob_BT = tensor([[log_ratio - 3.0]]).requires_grad_()
    by_token_BT = token_ratio(logprob_BT, tensor([[-3.0]]))
    by_sequence_B = sequence_ratio(logprob_BT, mask(1), tensor([-3.0]))
    assert by_token_BT.item() == by_sequence_B.item() == pytest.approx(math.exp(bounded), rel=1e-12)
    (gradient_BT,) = torch.autograd.grad(by_sequence_B.sum(), logprob_BT)
    assert gradient_BT.item() == pytest.approx(math.exp(bounded) if log_ratio == bounded else 0.0, rel=1e-12)


def test_log_ratio_that_is_not_floored_keeps_its_gradient_below() -> None:
    logprob_BT = tensor([[-43.0], [15.0]]).requires_grad_()
    ratio_B = sequence_ratio(logprob_BT, mask(1, 1), tensor([-3.0, -3.0]), is_floored=False)
    assert ratio_B.tolist() == pytest.approx([math.exp(-40), math.exp(10)], rel=1e-12)
    (gradient_BT,) = torch.autograd.grad(ratio_B.sum(), logprob_BT)
    assert gradient_BT[:, 0].tolist() == pytest.approx([math.exp(-40), 0.0], rel=1e-12)


def test_a_vanished_probability_gives_a_finite_ratio() -> None:
    assert sequence_ratio(tensor([[-1e308]]), mask(1), tensor([0.0])).item() == pytest.approx(math.exp(-10))
