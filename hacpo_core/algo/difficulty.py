"""How hard a problem is for what an agent has learned so far, and the weights that follow from it (HA-DW).

Shapes: P problem, A agent, G response of one agent to one problem.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hacpo_core.algo.groups import agent_mean


def mean_anchor(accuracies: Sequence[float]) -> float:
    """Mean accuracy of the last steps, this one included: C of HA-DW's hard anchor."""
    return float(np.mean(accuracies))


def kalman_anchor(anchors: Sequence[float], accuracy: float, *, gain: float) -> float:
    """The next value of an anchor that follows the accuracy the faster, the more it has moved lately.

        C+ = (1 - eta) C + eta y,   eta = min(1, gain std(anchors))

    Args:
        anchors: the last m values of C, oldest first.
        accuracy: y, mean raw reward of this step.
        gain: > 0.

    Returns:
        C+; the mean of C and y before there are two anchors. Where all anchors are equal, eta is 1/m: with 0 the anchor
        would never move again.
    Source: HA-DW (2601.08521); start and standstill: ours, see docs/decisions.md#ha-dw.
    """
    if len(anchors) < 2:
        return float(np.mean([*anchors, accuracy]))
    std = float(np.std(anchors))
    eta = min(1.0, gain * std) if std > 0 else 1.0 / len(anchors)
    return (1.0 - eta) * anchors[-1] + eta * accuracy


def difficulty_weights(reward_PAG: Tensor, counts_PAG: Tensor, *, anchor: float, scale: float) -> Tensor:
    """Weights of advantages: a right answer counts more where the problem is harder than usual, a wrong one less.

        d = p - C,   weight = scale exp(-sign(d) sign(R - p) |d|)

    p is the mean reward of the response's own group.

    Args:
        reward_PAG: raw reward R in [0, 1], finite.
        counts_PAG: True where the response counts in p.
        anchor: C, mean reward that the learner is used to.
        scale: lambda, > 0.

    Returns:
        weight_PAG, between scale / e and scale e.
    Source: HA-DW (2601.08521).
    """
    mean_PA1 = agent_mean(reward_PAG, counts_PAG)[:, :, None]
    return scale * torch.exp((anchor - mean_PA1) * torch.sign(reward_PAG - mean_PA1))
