"""WMSS by hand: the loss on fused logits, its gradient, and the weights of examples.

Shapes: N token, V vocabulary, B example.
"""

import math

import pytest
import torch

from hacpo_core.algo.weak_driven import example_weights, fused_cross_entropy

# softmax of the fused logits (1, 0) + (log 3 - 1, 0) at mix 0.5 is (3/4, 1/4): 0.5 * 2 log 3 = log 3
STRONG_NV = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
WEAK_NV = torch.tensor([[2 * math.log(3) - 2.0, 0.0]], dtype=torch.float64)


def test_loss_is_the_cross_entropy_of_the_mixed_logits() -> None:
    for target, expected in ((0, -math.log(3 / 4)), (1, -math.log(1 / 4))):
        loss_N = fused_cross_entropy(STRONG_NV, WEAK_NV, torch.tensor([target]), mix=0.5)
        assert loss_N.tolist() == pytest.approx([expected])


def test_mix_of_one_is_the_plain_cross_entropy_and_of_zero_that_of_the_weak_model() -> None:
    generator = torch.Generator().manual_seed(0)
    strong_NV, weak_NV = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    target_N = torch.tensor([0, 6, 3, 3, 1])
    for mix, logits_NV in ((1.0, strong_NV), (0.0, weak_NV)):
        plain_N = -logits_NV.log_softmax(1).gather(1, target_N[:, None])[:, 0]
        torch.testing.assert_close(fused_cross_entropy(strong_NV, weak_NV, target_N, mix=mix), plain_N)


def test_gradient_reaches_the_strong_model_alone_and_is_half_of_probability_less_target() -> None:
    strong_NV, weak_NV = STRONG_NV.clone().requires_grad_(), WEAK_NV.clone().requires_grad_()
    fused_cross_entropy(strong_NV, weak_NV, torch.tensor([0]), mix=0.5).sum().backward()
    assert strong_NV.grad is not None
    assert strong_NV.grad.tolist()[0] == pytest.approx([0.5 * (3 / 4 - 1), 0.5 * (1 / 4)])
    assert weak_NV.grad is None


def test_gradient_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    strong_NV, weak_NV = (torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    target_N = torch.tensor([2, 0, 1])
    assert torch.autograd.gradcheck(
        lambda logits_NV: fused_cross_entropy(logits_NV, weak_NV, target_N, mix=0.3), strong_NV.requires_grad_()
    )


def test_sure_model_learns_more_where_the_weak_one_doubts() -> None:
    """What the method is for; a mix after the softmax, or none, has not this gradient."""
    strong_NV = torch.tensor([[10.0, 0.0]], dtype=torch.float64, requires_grad=True)
    plain = torch.nn.functional.cross_entropy(strong_NV, torch.tensor([0]))
    (of_plain,) = torch.autograd.grad(plain, strong_NV)
    fused = fused_cross_entropy(strong_NV, torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]), mix=0.5)
    (of_fused,) = torch.autograd.grad(fused.sum(), strong_NV)
    assert of_fused[0, 1] == pytest.approx(0.5 / (1 + math.exp(5)))
    assert of_fused[0, 1] > 50 * of_plain[0, 1]


@pytest.mark.parametrize("mix", [-0.1, 1.1, math.nan])
def test_mix_out_of_range_is_refused(mix: float) -> None:
    with pytest.raises(ValueError, match=r"mix: got .*, expected a value in \[0, 1\]"):
        fused_cross_entropy(STRONG_NV, WEAK_NV, torch.tensor([0]), mix=mix)


def test_weights_of_surer_equal_and_less_sure_examples() -> None:
    strong_B, weak_B = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 0.5])
    weight_B = example_weights(strong_B, weak_B, gain=0.2, entropy=0.5, loss=0.3)
    # dH = -2, 0, 0.5
    assert weight_B.tolist() == pytest.approx([0.2 * 2 + 0.5, 0.5, 0.5 + 0.3 * 0.5])
