"""Which verdicts a reader should check first: a comparison of characters and digits that knows no algebra."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"\\[A-Za-z]+")
_IDLE = re.compile(r"[^0-9a-z.+*/^<>=-]")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
SAME_LETTERS = "wrong, but the same letters"
OTHER_NUMBERS = "correct, but other numbers"
UNSCORED = "unscored"
DOUBTS = (SAME_LETTERS, OTHER_NUMBERS, UNSCORED)
"""in the order in which they are listed"""


def doubt(status: str, extracted: str | None, gold: str) -> str:
    """One of DOUBTS, or "" for a verdict that looks right.

    Letters are what is left without LaTeX commands, spaces, brackets and commas; numbers are
    compared as sets, where the gold answer has some.
    """
    if status == "unscored":
        return UNSCORED
    if extracted is None:
        return ""
    candidate, expected = (_IDLE.sub("", _COMMAND.sub("", answer).lower()).rstrip(".") for answer in (extracted, gold))
    if status == "wrong" and candidate == expected and expected:
        return SAME_LETTERS
    is_other = status == "correct" and candidate != expected and not _numbers(extracted) & _numbers(gold)
    return OTHER_NUMBERS if is_other and re.search(r"\d", gold) else ""


def _numbers(answer: str) -> set[frozenset[float]]:
    """The numbers in a text, with commas as separators of numbers and of thousands."""
    return {frozenset(map(float, _NUMBER.findall(text))) for text in (answer, answer.replace(",", ""))}
