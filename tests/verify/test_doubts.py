"""Which verdicts a reader should check first."""

import pytest

from hacpo_core.verify.doubts import OTHER_NUMBERS, SAME_LETTERS, UNSCORED, doubt


@pytest.mark.parametrize(
    ("status", "extracted", "gold", "expected"),
    [
        ("wrong", r"[0.225, 0.275]", "$(0.225, 0.275)$.", SAME_LETTERS),
        ("wrong", r"\dfrac{1}{2}", r"\frac{1}{3}", ""),
        ("wrong", None, "3", ""),
        ("correct", "10^{-8}", "1e-9", OTHER_NUMBERS),
        ("correct", r"\frac{6}{8}", "0.75", OTHER_NUMBERS),
        ("correct", "1,234", "1234", ""),
        ("correct", "3, 1", r"\{1,3\}", ""),
        ("correct", "C) x > 5", "C", ""),
        ("correct", "x = 5", "5", ""),
        ("unscored", "5", "5", UNSCORED),
        ("unscored", None, "", UNSCORED),
    ],
)
def test_doubt(status: str, extracted: str | None, gold: str, expected: str) -> None:
    assert doubt(status, extracted, gold) == expected
