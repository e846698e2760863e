r"""Answers with several members, as text: a list, a set, a point, an interval.

3, \{1, 2\} and (4, 5)  ->  list of "3", "\{1, 2\}", "(4, 5)"
\{2 \pm 1\}             ->  set of "2 + 1", "2 - 1"
[2, \infty)             ->  "[)" of "2", "\infty"
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BETWEEN = re.compile(r"\\text ?\{ ?(?:and|or) ?\}|\b(?:and|or)\b|\\(?:vee|lor)(?![A-Za-z])")
_LEADING_SIGN = re.compile(r"(^|=) ?\+ ?")
_OPENS, _CLOSES = {"(": "(", "[": "[", r"\{": "{"}, {")": ")", "]": "]", r"\}": "}"}


@dataclass(frozen=True, slots=True)
class Listing:
    """The members of an answer and its brackets: "" (a list), "{}" (a set), "()", "[]", "[)" or "(]"."""

    brackets: str
    members: tuple[str, ...]

    @property
    def has_order(self) -> bool:
        """Whether members have a place: those of points and intervals do."""
        return self.brackets not in ("", "{}")


def listing(answer: str) -> Listing | None:
    """The members of a canonical answer; None if it is a single value. Both signs of \\pm are two members."""
    brackets, inner = _bracketed(answer)
    members = _split(inner)
    if brackets not in ("", "{}"):
        return Listing(brackets, tuple(members)) if len(members) > 1 else None
    both = tuple(value for member in members for value in _both_signs(member))
    return Listing(brackets, both) if brackets or len(both) > 1 else None


def _bracketed(answer: str) -> tuple[str, str]:
    """Brackets around the whole answer, "" if there are none, and what they contain."""
    opened = next((sign for sign in _OPENS if answer.startswith(sign)), "")
    closed = next((sign for sign in _CLOSES if answer.endswith(sign)), "")
    if not opened or not closed or (_OPENS[opened] == "{") != (_CLOSES[closed] == "}"):
        return "", answer
    inner = answer[len(opened) : -len(closed)]
    depth = 0
    for sign in inner:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return "", answer
    return ("", answer) if depth else (_OPENS[opened] + _CLOSES[closed], inner.strip())


def _split(text: str) -> list[str]:
    """Parts between commas, semicolons, "and" and "or" outside brackets."""
    parts, depth = [""], 0
    for sign in _BETWEEN.sub(",", text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def _both_signs(member: str) -> list[str]:
    if r"\pm" not in member:
        return [member]
    upper = member.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = member.replace(r"\pm", "-").replace(r"\mp", "+")
    return [_LEADING_SIGN.sub(r"\1", upper).strip(), _LEADING_SIGN.sub(r"\1", lower).strip()]
