"""Finds the value that does not fit a schema, to say so in the configuration's own terms."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hacpo_core.config.fields import options

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Misfit:
    """A field with a value of the wrong type, or a name that is no field; `problem` says what was expected."""

    name: str
    problem: str


def misfit(kind: Any, value: Any, name: str = "") -> Misfit | None:
    """The first value that does not fit a type; None if all do.

    Args:
        kind: type annotation, such as a configuration dataclass.
        value: plain YAML value.
        name: dotted name of the value, "" for a whole file.
    """
    if isinstance(value, str) and "${" in value:
        return None
    kinds = options(kind)
    if Any in kinds or any(_holds(option, value) for option in kinds):
        inner = next((option for option in kinds if option is not type(None)), kind)
        return _inside(inner, value, name)
    return Misfit(name or "the file", f"got {value!r}, expected {' or '.join(map(_words, kinds))}")


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Hint at similar names, "" if there is none; ends in a question mark."""
    close = difflib.get_close_matches(name, names, n=2)
    return f"did you mean {' or '.join(close)}?" if close else ""


def _inside(kind: Any, value: Any, name: str) -> Misfit | None:
    prefix = f"{name}." if name else ""
    if isinstance(value, list):
        parts = [(get_args(kind)[0], entry, f"{name}[{place}]") for place, entry in enumerate(value)]
    elif not isinstance(value, dict) or kind is Any:
        return None
    elif dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        field_kinds = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
        for key in value:
            if key not in field_kinds:
                names = f"expected one of {', '.join(field_kinds)}" if field_kinds else "the section has none"
                hint = did_you_mean(str(key), list(field_kinds)) or names
                return Misfit(f"{prefix}{key}", f"there is no such field; {hint}")
        parts = [(field_kinds[key], entry, f"{prefix}{key}") for key, entry in value.items()]
    else:
        parts = [(get_args(kind)[1], entry, f"{prefix}{key}") for key, entry in value.items()]
    return next((inner_misfit for part in parts if (inner_misfit := misfit(*part)) is not None), None)


def _holds(kind: Any, value: Any) -> bool:
    """Whether OmegaConf can convert the value, apart from what is inside it."""
    if kind is type(None):
        return value is None
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list)
    if get_origin(kind) is dict or dataclasses.is_dataclass(kind):
        return isinstance(value, dict)
    if value is None or isinstance(value, list | dict):
        return False
    if kind is bool:
        return isinstance(value, bool | int) or str(value).lower() in ("true", "false", "yes", "no", "on", "off")
    if kind in (int, float):
        try:
            return kind(value) == float(value) or kind is float  # nan differs from itself
        except (ValueError, OverflowError):  # int(inf), float(10**400)
            return False
    return True


def _words(kind: Any) -> str:
    if kind is type(None):
        return "null"
    if get_origin(kind) is list:
        return f"a list ({_words(get_args(kind)[0])} each)"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is dict:
        return "a mapping"
    if dataclasses.is_dataclass(kind):
        return f"a section with {', '.join(field.name for field in dataclasses.fields(kind))}"
    return _WORDS.get(kind, str(kind))
