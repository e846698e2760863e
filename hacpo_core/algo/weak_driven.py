"""WMSS: supervised training against an earlier, weaker checkpoint of the same model.

Shapes: N token (of all rows), V vocabulary, B example.
"""

import torch
from torch import Tensor


def fused_cross_entropy(strong_NV: Tensor, weak_NV: Tensor, target_N: Tensor, *, mix: float) -> Tensor:
    """Cross-entropy of logits mixed with those of a weaker model, which gets no gradient.

        z = mix z_strong + (1 - mix) z_weak,   loss = logsumexp(z) - z[target]
        d loss / d z_strong = mix (softmax(z) - onehot(target))

    Where the strong model is certain and the weak one is not, softmax(z) is flatter than the strong model's own
    distribution, so that tokens other than the target keep a gradient.

    Args:
        strong_NV: logits of the model that is trained.
        weak_NV: logits of the weaker one.
        target_N: token ids.
        mix: lambda in [0, 1]; 1 gives the strong model's plain cross-entropy.

    Returns:
        loss_N, nats.

    Raises:
        ValueError: mix is outside [0, 1].
    Source: WMSS (2602.08222).
    """
    if not 0 <= mix <= 1:
        raise ValueError(f"mix: got {mix}, expected a value in [0, 1]")
    fused_NV = mix * strong_NV + (1 - mix) * weak_NV.detach()
    return torch.nn.functional.cross_entropy(fused_NV, target_N, reduction="none")


def example_weights(
    strong_entropy_B: Tensor, weak_entropy_B: Tensor, *, gain: float, entropy: float, loss: float
) -> Tensor:
    """Unnormalised probability with which each example is drawn.

        w = gain [-dH]+ + entropy H_strong + loss [dH]+,   dH = H_strong - H_weak,   [x]+ = max(x, 0)

    [-dH]+ is by how much the model has become more certain of an example since the weak checkpoint, [dH]+ by how much
    less certain; H_strong is its current uncertainty.

    Args:
        strong_entropy_B: mean entropy of the solution's tokens under the model that is trained, nats.
        weak_entropy_B: the same under the weaker one.
        gain: alpha, >= 0.
        entropy: beta, >= 0.
        loss: gamma, >= 0.

    Returns:
        weight_B, >= 0; possibly all 0.
    Source: WMSS (2602.08222).
    """
    change_B = strong_entropy_B - weak_entropy_B
    return gain * (-change_B).clamp(min=0) + entropy * strong_entropy_B + loss * change_B.clamp(min=0)
