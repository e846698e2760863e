r"""Answers with several members, as text: a list, a set, a point, an interval.

3, \{1, 2\} and (4, 5)  ->  list of "3", "\{1, 2\}", "(4, 5)"
\{2 \pm 1\}             ->  set of "2 + 1", "2 - 1"
[2, \infty)             ->  "[)" of "2", "\infty"
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BETWEEN = re.compile(r"\\text ?\{ ?(?:and|or) ?\}|\b(?:and|or)\b|\\vee(?![A-Za-z])")
_ONE_NAME = r"(?!(?:\\pi|e)(?![A-Za-z]))\\?[A-Za-z]+'?(?:_\w)?(?: ?\([^()]*\))?"
NAME = re.compile(rf"{_ONE_NAME}(?: ?: ?{_ONE_NAME})*")
"""what an equation gives a value: x, f(x), a ratio a:b"""
_NAMED = re.compile(r"(?P<name>\\?[A-Za-z][^=<>]*?) ?= ?(?P<value>[^=<>]+)")
AND = re.compile(r" ?(?:\\text ?\{ ?and ?\}|\band\b|\\wedge(?![A-Za-z])) ?")
_INEQUALITY = re.compile(r"[<>!:]=|=[<>]|[<>]|\\(?:neq|le|ge|not)(?![a-z])")
_APPROXIMATELY = re.compile(r"\\approx(?![a-z])")
_NAMES = re.compile(r"\((?P<names>\\?[A-Za-z](?:_\w)?(?:, ?\\?[A-Za-z](?:_\w)?)+)\) ?= ?(?P<values>\(.+\))", re.DOTALL)
_BETWEEN_BOUNDS = re.compile(
    r"(?P<low>[^<>=,;]+?) ?(?P<below><|\\le(?![a-z])) ?(?:[k-z]|\\[a-z]+)(?:_\w)?"
    r" ?(?P<above><|\\le(?![a-z])) ?(?P<high>[^<>=,;]+)"
)
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

    @property
    def values(self) -> dict[str, str]:
        """Values of coordinates, by name; empty unless all members are `name = value` and all names differ."""
        matches = [_NAMED.fullmatch(member) for member in self.members]
        values = {match["name"].replace(" ", ""): match["value"] for match in matches if match is not None}
        return values if len(values) == len(matches) > 1 else {}


def listing(answer: str) -> Listing | None:
    """The members of a canonical answer; None if it is a single value. Both signs of \\pm are two members."""
    names = _NAMES.fullmatch(answer)
    if names is not None:
        answer = _with_names(parts(names["names"], ","), names["values"]) or answer
    brackets, inner = _bracketed(answer)
    members = parts(_BETWEEN.sub(",", inner), ",;")
    if brackets not in ("", "{}"):
        return Listing(brackets, tuple(members)) if len(members) > 1 else None
    both = tuple(value for member in members for value in both_signs(member))
    return Listing(brackets, both) if brackets or len(both) > 1 else None


def interval(answer: str) -> str:
    """The interval (a, b] that a < x <= b means; any other answer as it is, a < b < c too."""
    match = _BETWEEN_BOUNDS.fullmatch(answer)
    if match is None:
        return answer
    opening, closing = "(" if match["below"] == "<" else "[", ")" if match["above"] == "<" else "]"
    return f"{opening}{match['low'].strip()}, {match['high'].strip()}{closing}"


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


def _with_names(names: list[str], values: str) -> str | None:
    """The list x = 1, y = 2 that (x, y) = (1, 2) means; None if there are not as many values."""
    point = listing(values)
    if point is None or point.brackets != "()" or len(point.members) != len(names):
        return None
    return ", ".join(f"{name} = {value}" for name, value in zip(names, point.members, strict=True))


def parts(text: str, separators: str) -> list[str]:
    """What is between separators of one character outside brackets, without what is empty."""
    members, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign in separators and depth == 0:
            members.append("")
        else:
            members[-1] += sign
    return [part.strip() for part in members if part.strip()]


def chain(answer: str) -> list[str]:
    """The sides of equations that follow one another, a = b = c; the answer alone if it has an inequality."""
    return [answer] if _INEQUALITY.search(answer) else parts(_APPROXIMATELY.sub("=", answer), "=")


def both_signs(member: str) -> list[str]:
    """The two values of a member with \\pm, or the member."""
    if r"\pm" not in member:
        return [member]
    upper = member.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = member.replace(r"\pm", "-").replace(r"\mp", "+")
    return [_LEADING_SIGN.sub(r"\1", upper).strip(), _LEADING_SIGN.sub(r"\1", lower).strip()]
