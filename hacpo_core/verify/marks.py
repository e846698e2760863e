"""What math-verify drops or merges, as text: primes, transposed matrices, capitals, numbers in text."""

from __future__ import annotations

import re

from hacpo_core.verify.lists import NAME

_NUMBER_IN_TEXT = re.compile(r"\\text\{(?:[^{}]*[^{}\w^.])?\d[^{}]*\}")
_MARK = re.compile(r"(?<=[A-Za-z)}])'+(?![A-Za-z])|(?<!matrix\})\^ ?\{? ?(?:T|\\top|\\intercal)(?![A-Za-z])")
_VARIABLE = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_NO_VARIABLE = re.compile(
    r"\\(?:text|begin|end)\{[^{}]*\}|(?<=\d)[eE](?=[-+]?\d)|\\(?!(?:gamma|delta|theta|lambda|phi|psi|omega)(?![a-z]))[a-z]+",
    re.IGNORECASE,
)


def marks_agree(candidate: str, expected: str) -> bool:
    """Whether two answers have as many primes and exponents T, and no text of the candidate holds a further number."""
    if len(_NUMBER_IN_TEXT.findall(candidate)) > len(_NUMBER_IN_TEXT.findall(expected)):
        return False  # 12 \text{ (or 13)}
    return _num_marks(candidate, expected) == _num_marks(expected, candidate)


def capitals_agree(candidate: str, expected: str) -> bool:
    """Whether both answers write their variables as the same small or capital letters; math-verify takes M for m.

    A c may be written C: a constant of integration.
    """
    cases, expected_cases = _cases(candidate), _cases(expected)
    return all(cases.get(letter, case) == case for letter, case in expected_cases.items() if letter != "c")


def _cases(answer: str) -> dict[str, set[str]]:
    """How the variables of an answer are written, by their small letter; those of its last side if others are names."""
    sides = answer.split("=")
    value = sides[-1] if all(NAME.fullmatch(side.strip()) or not side.strip() for side in sides[:-1]) else answer
    cases: dict[str, set[str]] = {}
    for name in _VARIABLE.findall(_NO_VARIABLE.sub("", value)):
        cases.setdefault(name.lower(), set()).add(name)
    return cases


def _num_marks(answer: str, other: str) -> int:
    """Number of primes and of T as an exponent, without those of a name that the other answer lacks."""
    value = answer.rpartition("=")[2] if "=" not in other else answer
    return sum(map(len, _MARK.findall(value)))
