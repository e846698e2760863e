"""Conditions that are typed to filter runs: `method=hacpo pair~tiny reward>0.6 tag!=old late`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hacpo_core.errors import ConfigError

Lookup = Callable[[str], Any]
"""column -> a run's value of it: a number, a text, a list of texts, or None"""
_PART = re.compile(r"(?P<column>[\w./:+@-]+)(?P<operator>==|!=|!~|>=|<=|=|~|>|<)(?P<value>.*)", re.DOTALL)
HELP = (
    "column=value, == exactly this text, != not, ~ contains, !~ does not, > >= < <= numbers; a,b any of several; "
    "a bare word: in the id; reward@5, accuracy@best: at a step, or the highest"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `values` are alternatives."""

    column: str
    operator: str
    values: tuple[str, ...]

    def holds(self, value_of: Lookup) -> bool:
        """Whether a run meets it. Unknown values meet only != and !~."""
        run_value = value_of(self.column)
        if self.operator == "==":
            return exact_text(run_value) == self.values[0]
        if self.operator in ("!=", "!~"):
            return not any(_matches(self.operator[1], run_value, value) for value in self.values)
        return any(_matches(self.operator, run_value, value) for value in self.values)


def exact_text(value: Any) -> str:
    """A value as text that no other value of its column has: floats with all digits, lists as JSON; "" for none."""
    if isinstance(value, list | tuple):
        return json.dumps(value, ensure_ascii=False) if value else ""
    return "" if value is None else str(value)


def read_conditions(text: str) -> tuple[Condition, ...]:
    """Parse typed conditions.

    Raises:
        ConfigError: a quote is not closed, or a comparison with > or < has no number.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"filter: {error} in {text!r}; close the quote") from error
    return tuple(map(_condition, parts))


def _condition(part: str) -> Condition:
    match = _PART.fullmatch(part)
    if match is None:
        return Condition("run", "~", (part,))
    values = tuple(match["value"].split(",")) if match["operator"] in ("=", "!=", "~", "!~") else (match["value"],)
    if match["operator"][0] in "<>" and _number(match["value"]) is None:
        raise ConfigError(f"filter: got {part!r}, expected a number after {match['operator']}; use = or ~ for text")
    return Condition(match["column"], match["operator"], values)


def _matches(operator: str, run_value: Any, value: str) -> bool:
    if isinstance(run_value, list | tuple):
        return any(_matches(operator, item, value) for item in run_value) or (
            operator == "=" and not run_value and not value
        )
    if run_value is None or run_value == "":
        return operator == "=" and value == ""
    if operator == "~":
        return value.casefold() in str(run_value).casefold()
    left, right = _number(run_value), _number(value)
    if operator == "=":
        return (
            left == right if left is not None and right is not None else str(run_value).casefold() == value.casefold()
        )
    if left is None or right is None:
        return False
    return {">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[operator]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
