"""What an answer is: one of these types. `reading` makes them of text, `equality` compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


class UnreadError(ValueError):
    """An answer, or a part of it, that is not understood."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A number, an expression with variables, or a matrix, of sympy; decimals are exact fractions."""

    value: Any
    text: str = ""
    is_decimal: bool = False
    """whether it is written with a decimal point, so that it may be rounded"""
    nouns: frozenset[str] = frozenset()
    """words for what it counts"""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit: all that its words may mean by pint; in `term` its letters are variables: 5 m."""

    value: Expression
    units: tuple[Any, ...]
    term: Expression | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """A side of an equation: what it names ("" if it is no name), and its value (None if it is only a name)."""

    name: str
    value: Answer | None


@dataclass(frozen=True, slots=True)
class Chain:
    """Sides of equations that follow one another, a name first: x = 2 + 3 = 5."""

    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """Inequalities that name no set of numbers: they have several variables, or sympy cannot solve them."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A set of numbers: intervals, unions, what satisfies inequalities in one variable, whose name is `name`."""

    numbers: Any
    name: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Members, joined by ",", "and" or "or"; brackets are "" (a list), "{}" (a set), or those of an interval."""

    brackets: str
    members: tuple[Answer, ...]
    joined: str = ","

    @property
    def has_order(self) -> bool:
        """Whether members have a place: those of points and intervals do."""
        return self.brackets not in ("", "{}")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Parts between colons; `time` is not empty if they may be a time of the day: 3:45:00."""

    parts: tuple[Expression, ...]
    time: str = ""


@dataclass(frozen=True, slots=True)
class Literal:
    """What is compared as text: words, an option, a time of the day, digits in a base; `also` are shorter forms."""

    text: str
    also: tuple[str, ...] = ()
    is_option: bool = False


@dataclass(frozen=True, slots=True)
class Conditional:
    """An answer with a condition behind it, or with the domain that its variable has."""

    value: Answer
    condition: str
    is_domain: bool


Answer: TypeAlias = Expression | Quantity | Chain | Relation | Numbers | Listing | Ratio | Literal | Conditional
