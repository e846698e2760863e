r"""Numbers without a few, as text: x \neq 0, \mathbb{R} \setminus \{0, 1\}, x > 0 \text{ and } x \neq 1."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hacpo_core.verify.lists import AND, both_signs, parts

_EXCLUDING = re.compile(r"\\neq|\\setminus|- ?\\\{|except|but|other than|excluding", re.IGNORECASE)
_REALS = r"\mathbb{R}"
_UNEQUAL = re.compile(
    r"(?:(?P<base>.+?)(?: ?[,;] ?(?:\\text ?\{ ?(?:and|but) ?\} ?)?| ?(?:\\text ?\{ ?(?:and|but) ?\}|\band\b"
    r"|\bbut\b|\\wedge(?![A-Za-z])) ?))?"
    r"(?P<name>\\?[A-Za-z]+(?:_\w)?) ?\\neq(?![a-z]) ?(?P<values>[^<>=]+)"
)
_WITHOUT = re.compile(r"(?P<base>.+?) ?(?:\\setminus|-)(?![a-z]) ?\\\{(?P<values>.+)\\\}")
_EXCEPT = re.compile(
    r"(?:\\text ?\{ ?)?(?:all )?(?:(?:real )?numbers|reals|real values|real|\\mathbb\{R\})(?: of)?(?: [a-z])? ?"
    r"(?:\\text ?\{ ?)?(?:except|but|other than|excluding)(?: for)? ?\}? ?(?:[a-z] ?= ?)?(?P<values>.+?)\}?",
    re.IGNORECASE,
)
_BUILDER = re.compile(
    r"\\\{ ?(?P<name>\\?[A-Za-z])(?: ?\\in ?\\mathbb\{R\})? ?(?:\\mid|\\vert|\||:|\\colon)(?![a-z]) ?"
    r"(?P<condition>(?P=name)(?![A-Za-z_']).*)\\\}"
)
_IN_REALS = re.compile(r"^\\?[A-Za-z] ?\\in ?\\mathbb\{R\} ?(?:,|\\wedge|\\text ?\{ ?and ?\}) ?")
_RELATION = re.compile(r"[<>]|\\(?:[lg]e|neq)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Exclusion:
    r"""Numbers of `base` but `values`; `name` is their variable, "" if they have none."""

    name: str
    base: str
    values: tuple[str, ...]


def without_builder(answer: str) -> str:
    r"""The condition x > 2 that the set \{x \mid x > 2\} means; any other answer as it is."""
    match = _BUILDER.fullmatch(answer)
    if match is None or not _RELATION.search(match["condition"]):
        return answer
    return _IN_REALS.sub("", match["condition"]).strip()


def exclusion_of(answer: str) -> Exclusion | None:
    """The numbers that a canonical answer excludes, and from which; None if it excludes none."""
    if _EXCLUDING.search(answer) is None:
        return None
    match = _UNEQUAL.fullmatch(answer)
    if match is None:
        match = _WITHOUT.fullmatch(answer) or _EXCEPT.fullmatch(answer)
        if match is None:
            return None
        return Exclusion("", match.groupdict().get("base") or _REALS, _members(match["values"]))
    base, name, values = match["base"] or _REALS, match["name"], _members(match["values"])
    further = exclusion_of(base)
    if further is None:
        return Exclusion(name, base, values)
    return Exclusion(name, further.base, (*further.values, *values)) if further.name in ("", name) else None


def _members(values: str) -> tuple[str, ...]:
    return tuple(value for part in parts(AND.sub(",", values), ",") for value in both_signs(part))
