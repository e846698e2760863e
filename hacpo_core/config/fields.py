"""What a configuration field is: its default, its sentence, its range or choices, and whether it is part of the id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KEY = "hacpo"
"""under which a dataclass field's metadata holds its `Declaration`"""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything that is known of a field beside its name, type and default.

    Attributes:
        about: one sentence, with the unit.
        choices: values that are allowed; () for any.
        at_least, above, at_most: range of a number; `above` excludes the bound itself.
        remedy: what a value out of range gets to hear besides.
        identity: False where the field changes no result and is no part of the experiment's id.
        inert: gives the reason why the field cannot take effect in a configuration, or None.
    """

    about: str
    choices: tuple[Any, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    remedy: str = ""
    identity: bool = True
    inert: Callable[[Any], str | None] | None = None


def setting(
    default: Any,
    about: str,
    *,
    choices: Sequence[Any] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    remedy: str = "",
    identity: bool = True,
    inert: Callable[[Any], str | None] | None = None,
) -> Any:
    """A dataclass field with its declaration; a default that can be called (`dict`, a section) makes a fresh value."""
    declared = Declaration(about, tuple(choices), at_least, above, at_most, remedy, identity, inert)
    kind = "default_factory" if callable(default) else "default"
    return dataclasses.field(**{kind: default}, metadata={KEY: declared})


def declaration(field: dataclasses.Field[Any]) -> Declaration | None:
    """What `setting` declared of a dataclass field."""
    found: Declaration | None = field.metadata.get(KEY)
    return found
