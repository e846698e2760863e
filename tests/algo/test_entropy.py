"""The weight of an entropy bonus, and the tokens of the highest entropy."""

from __future__ import annotations

import numpy as np
import pytest

from hacpo_core.algo.entropy import adapted_coefficient, applied_coefficient, top_share_threshold


@pytest.mark.parametrize(
    ("coefficient", "entropy", "expected"),
    [(0.01, 0.1, 0.015), (0.01, 0.2, 0.015), (0.01, 0.3, 0.005), (0.018, 0.1, 0.02), (0.003, 0.3, 0.0)],
)
def test_coefficient_rises_at_or_below_the_target_and_falls_above_it(
    coefficient: float, entropy: float, expected: float
) -> None:
    found = adapted_coefficient(coefficient, entropy, target=0.2, step=0.005, max_coefficient=0.02)
    assert found == pytest.approx(expected, abs=1e-15)


def test_coefficient_applies_at_or_below_the_target() -> None:
    assert [applied_coefficient(0.01, entropy, target=0.2) for entropy in (0.1, 0.2, 0.3)] == [0.01, 0.01, 0.0]


def test_threshold_leaves_the_share_with_the_highest_entropy() -> None:
    entropy_N = np.array([3.0, 0.0, 4.0, 1.0, 2.0], np.float32)
    assert top_share_threshold(entropy_N, 0.2) == pytest.approx(3.2)  # 4 alone
    assert top_share_threshold(entropy_N, 0.5) == pytest.approx(2.0)  # 2, 3 and 4
    assert top_share_threshold(entropy_N[:1], 0.2) == 3.0
