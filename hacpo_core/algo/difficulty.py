"""Advantage weights from a problem's difficulty relative to the agent's recent accuracy (HA-DW).

Shapes: P problem, A agent, G response of one agent to one problem.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hacpo_core.algo.groups import agent_mean


def mean_anchor(accuracies: Sequence[float]) -> float:
    """Mean accuracy over the last steps, the current one included: C of HA-DW's hard anchor."""
    return float(np.mean(accuracies))


def kalman_anchor(anchors: Sequence[float], accuracy: float, *, gain: float) -> float:
    """Next value of a moving average of accuracy whose rate grows with the spread of its recent values.

        C+ = (1 - eta) C + eta y,   eta = min(1, gain std(anchors))

    Args:
        anchors: the last m values of C, oldest first.
        accuracy: y, mean raw reward of this step.
        gain: > 0.

    Returns:
        C+. With fewer than two anchors, it is the mean of C and y. If all anchors are equal, eta is 1/m, because with
        eta = 0 the anchor would never change again.
    Source: HA-DW (2601.08521); both exceptions are ours, see docs/decisions.md#ha-dw.
    """
    if len(anchors) < 2:
        return float(np.mean([*anchors, accuracy]))
    std = float(np.std(anchors))
    eta = min(1.0, gain * std) if std > 0 else 1.0 / len(anchors)
    return (1.0 - eta) * anchors[-1] + eta * accuracy


def difficulty_weights(reward_PAG: Tensor, counts_PAG: Tensor, *, anchor: float, scale: float) -> Tensor:
    """Advantage weights: on a problem harder than average, correct answers count more and wrong answers less.

        d = p - C,   weight = scale exp(-sign(d) sign(R - p) |d|)

    p is the mean reward of the response's own group.

    Args:
        reward_PAG: raw reward R in [0, 1], finite.
        counts_PAG: True where the response counts in p.
        anchor: C, recent mean reward of the learner.
        scale: lambda, > 0.

    Returns:
        weight_PAG, between scale / e and scale e.
    Source: HA-DW (2601.08521).
    """
    mean_PA1 = agent_mean(reward_PAG, counts_PAG)[:, :, None]
    return scale * torch.exp((anchor - mean_PA1) * torch.sign(reward_PAG - mean_PA1))
