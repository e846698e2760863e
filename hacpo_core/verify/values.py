"""What an answer is: one of these types. `reading` makes them of text, `equality` compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Expression:
    """A number, an expression with variables, or a matrix, of sympy; decimals are exact fractions."""

    value: Any
    text: str = ""
    is_decimal: bool = False
    """whether it is written with a decimal point, so that it may be rounded"""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit: all that its words may mean by pint; `term` is a value whose unit may be variables: 5 m."""

    value: Expression
    unit: tuple[Any, ...]
    term: Expression | None = None


@dataclass(frozen=True, slots=True)
class Percent:
    """A value with a percent sign."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Side:
    """A side of an equation: what it names ("" if it is no name), and its value (None if it is only a name)."""

    name: str
    value: Answer | None


@dataclass(frozen=True, slots=True)
class Chain:
    """Sides of equations that follow one another: x = 2 + 3 = 5."""

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
    """Parts between colons."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """Digits of a number in a base."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Time:
    """A time as on a clock's face, with "a", "p" or "" for the half of the day."""

    hours: int
    minutes: int
    seconds: int
    half: str

    @property
    def of_day(self) -> tuple[int, int, int] | None:
        """Hours from 0 to 23, minutes and seconds; None if the half of the day is unknown."""
        if not self.half:
            return None if 1 <= self.hours <= 12 else (self.hours, self.minutes, self.seconds)
        return self.hours % 12 + (12 if self.half == "p" else 0), self.minutes, self.seconds


@dataclass(frozen=True, slots=True)
class Option:
    """The letter of an option, or yes, no, true or false."""

    choice: str


@dataclass(frozen=True, slots=True)
class Words:
    """A few words, in small letters and without blanks."""

    text: str


@dataclass(frozen=True, slots=True)
class Conditional:
    """An answer with a condition behind it, or with the domain that its variable has."""

    value: Answer
    condition: str
    is_domain: bool


Answer: TypeAlias = (
    Expression | Quantity | Percent | Chain | Relation | Numbers | Listing | Ratio | Base | Time | Option | Words
    | Conditional
)  # fmt: skip
