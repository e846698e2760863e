"""Ratios, as text: 3:4:5 equals 6:8:10."""

from __future__ import annotations

import re
from itertools import combinations

from hacpo_core.verify.algebra import equal_by_algebra
from hacpo_core.verify.lists import NAME, parts

_ZERO = re.compile(r"[-+]?0*\.?0*")
_MIN_PARTS, _MAX_PARTS = 3, 6
"""math-verify takes a:b for a quotient, which is right, and a:b:c for one too, which is not"""


def ratios_agree(candidate: str, expected: str) -> bool | None:
    """Whether two ratios of three or more parts are proportional; None if neither is such a ratio.

    A zero is equal to a zero as text alone.
    """
    if ":" not in candidate + expected:
        return None
    members, expected_members = _parts(candidate), _parts(expected)
    if max(len(members), len(expected_members)) < _MIN_PARTS:
        return None
    if len(members) != len(expected_members) or len(members) > _MAX_PARTS:
        return False
    name, expected_name = (answer.rpartition("=")[0].replace(" ", "") for answer in (candidate, expected))
    if name and expected_name and name != expected_name:
        return False
    both = list(zip(members, expected_members, strict=True))
    if any(_ZERO.fullmatch(member) for pair in both for member in pair):
        return members == expected_members
    return all(
        equal_by_algebra(rf"({one})\cdot({other_expected})", rf"({other})\cdot({one_expected})", 0.0)
        for (one, one_expected), (other, other_expected) in combinations(both, 2)
    )


def _parts(answer: str) -> list[str]:
    """What stands between the colons of 3:4:5 or x:y:z = 3:4:5."""
    name, _, value = answer.rpartition("=")
    return parts(value if NAME.fullmatch(name.strip()) else answer, ":")
