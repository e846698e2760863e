"""Entropy of the policy: the weight of a bonus for it, and the tokens that have most of it.

Shapes: N token of a mini-batch's own rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def adapted_coefficient(
    coefficient: float, entropy: float, *, target: float, step: float, max_coefficient: float
) -> float:
    """Weight of the entropy bonus after an update.

        c <- min(c + d, c_max) where H <= target,   max(c - d, 0) elsewhere

    Args:
        coefficient: c before the update, >= 0.
        entropy: H, mean over the update's tokens, nats.
        target: nats per token.
        step: d, >= 0.
        max_coefficient: c_max.
    Source: Skywork-OR1 (2505.22312), adaptive entropy control; bounds as in TRL.
    """
    return min(coefficient + step, max_coefficient) if entropy <= target else max(coefficient - step, 0.0)


def applied_coefficient(coefficient: float, entropy: float, *, target: float) -> float:
    """Weight that an update's bonus has: c where H of the update before is at most the target, else 0.

    Source: Skywork-OR1 (2505.22312).
    """
    return coefficient if entropy <= target else 0.0


def top_share_threshold(entropy_N: NDArray[np.float32], share: float) -> float:
    """Entropy from which a token belongs to the given share of tokens with the highest entropy.

        quantile of H at 1 - share, interpolated linearly

    Args:
        entropy_N: H of each token, nats; at least one.
        share: in (0, 1).
    Source: the 80/20 rule (2506.01939), rho = share; TRL's `top_entropy_quantile`.
    """
    return float(np.quantile(entropy_N.astype(np.float64), 1.0 - share))
