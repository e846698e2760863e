"""Bounds on importance ratios.

Shapes: any; a ratio of one sequence or of one token.
"""

from typing import NamedTuple

from torch import Tensor


class Bounds(NamedTuple):
    """Interval to which a ratio is clipped."""

    floor: float
    ceiling: float


UNBOUNDED = Bounds(0.0, float("inf"))


def own_bounds(*, low: float, high: float) -> Bounds:
    """Bounds for responses that the learner sampled itself.

        [1 - low, 1 + high]

    Source: HACPO Eq. 49; GSPO; DAPO's unequal bounds.
    """
    return Bounds(1.0 - low, 1.0 + high)


def cross_bounds(*, floor: float, step: float, update: int) -> Bounds:
    """Bounds for responses that another agent sampled: at most 1, and tighter with every update of the step.

        [min(1, floor + m step), 1],   floor = 1 - delta

    Args:
        floor: lower bound before the first update, in [0, 1]; 1 - delta of the paper.
        step: rise of the floor per update, >= 0; delta_step of the paper.
        update: m, number of updates that this learner has already made in this step, >= 0.
    Source: HACPO Eq. 13, 14, 52.
    """
    return Bounds(min(1.0, floor + update * step), 1.0)


def mirrored_cross_bounds(*, floor: float, step: float, update: int) -> Bounds:
    """Bounds for responses that another agent sampled, as far above 1 as below, and tighter with every update.

        [f, 2 - f],   f = min(1, floor + m step)

    Args:
        floor, step, update: as for `cross_bounds`.
    Source: ours; see docs/decisions.md#self-normalised-cross-ratios.
    """
    lower = cross_bounds(floor=floor, step=step, update=update).floor
    return Bounds(lower, 2.0 - lower)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, bounds: Bounds, *, is_pessimistic: bool) -> Tensor:
    """Ratio times advantage with the ratio clipped to the bounds.

        min( r A, clip(r) A )     pessimistic: clipping applies only where it lowers the objective
        clip(r) A                 otherwise: clipping stops the gradient on both sides

    Returns:
        surrogate, shape of ratio.
    Source: HACPO Eq. 47 (pessimistic), Eq. 50 (not).
    """
    clipped = ratio.clamp(bounds.floor, bounds.ceiling) * advantage
    return (ratio * advantage).minimum(clipped) if is_pessimistic else clipped


def dual_clipped_surrogate(ratio: Tensor, advantage: Tensor, bounds: Bounds, *, limit: float) -> Tensor:
    """The pessimistic `clipped_surrogate`, bounded from below where the advantage is negative.

        max( min(r A, clip(r) A), c A )   where A < 0

    Args:
        ratio, advantage, bounds: as for `clipped_surrogate`.
        limit: c > 1. A larger ratio has no gradient where A < 0.

    Returns:
        surrogate, shape of ratio.
    Source: dual-clip PPO (1912.09729), Eq. 5; verl's `clip_ratio_c`.
    """
    surrogate = clipped_surrogate(ratio, advantage, bounds, is_pessimistic=True)
    return surrogate.where(advantage >= 0, surrogate.maximum(limit * advantage))


def is_stopped(ratio: Tensor, advantage: Tensor, bounds: Bounds, *, is_pessimistic: bool) -> Tensor:
    """True where clipping sets the gradient to 0.

    Pessimistic: ratio above the ceiling with positive advantage, or below the floor with negative advantage.
    Otherwise: ratio outside the bounds.
    """
    is_above, is_below = ratio > bounds.ceiling, ratio < bounds.floor
    if is_pessimistic:
        return (is_above & (advantage > 0)) | (is_below & (advantage < 0))
    return is_above | is_below
