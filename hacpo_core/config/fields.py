"""What a configuration field is: its default, its sentence, its unit, what it may be, and when it matters.

Each field of a configuration dataclass is declared by `setting`. Whatever else knows about fields reads that:
validation, the experiment's id, `hacpo show fields`, the page and docs/fields.md.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin, get_type_hints

from hacpo_core.errors import ConfigError

KEY = "hacpo"
"""under which a dataclass field's metadata holds its `Declaration`"""

Inert = Callable[[Any, Any], str | None]
"""(section that holds the field, whole configuration) -> why the field cannot take effect, or None"""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything that is known of a field beside its name, type and default.

    Attributes:
        about: one sentence.
        unit: of a number, such as tokens or GiB.
        choices: values that are allowed, each with what it means; empty for any.
        at_least, above, at_most: range of a number; `above` excludes the bound itself.
        remedy: what a value out of range gets to hear besides.
        identity: False where the field changes no result and is no part of the experiment's id.
        added_later: True where ids are older than the field, and its default does what was done before it: then it is
            part of the id with any other value.
        inert: gives the reason why the field cannot take effect in a configuration, or None.
    """

    about: str = ""
    unit: str = ""
    choices: Mapping[Any, str] = field(default_factory=dict)
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    remedy: str = ""
    identity: bool = True
    added_later: bool = False
    inert: Inert | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether it is a number with a range."""
        return not self.at_least is self.above is self.at_most is None

    @property
    def expected(self) -> str:
        """What the field may be, in words; empty where only its type says."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if not self.is_bounded:
            return ""
        bracket, least = ("[", self.at_least) if self.above is None else ("(", self.above)
        if self.at_most is not None:
            return f"a value in {bracket}{least:g}, {self.at_most:g}]"
        return f"a value of at least {least:g}" if bracket == "[" else f"a value above {least:g}"

    def check(self, name: str, value: Any) -> None:
        """Whether a value is allowed; None is wherever the field's type lets it through.

        Raises:
            ConfigError: it is not; the sentence begins with `name`.
        """
        if value is None or not (self.choices or self.is_bounded):
            return
        if self.choices:
            is_right = value in self.choices
        else:
            least = -math.inf if self.at_least is None else self.at_least
            is_above = value >= least if self.above is None else value > self.above
            is_right = is_above and value <= (math.inf if self.at_most is None else self.at_most) and value < math.inf
        if not is_right:
            remedy = f" ({self.remedy})" if self.remedy else ""
            raise ConfigError(f"{name}: got {value!r}, expected {self.expected}{remedy}")


def setting(
    default: Any,
    about: str,
    *,
    unit: str = "",
    choices: Mapping[Any, str] | Sequence[Any] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    remedy: str = "",
    identity: bool = True,
    added_later: bool = False,
    inert: Inert | None = None,
) -> Any:
    """A dataclass field with its declaration; a default that can be called (`dict`, a section) makes a fresh value."""
    meanings = choices if isinstance(choices, Mapping) else dict.fromkeys(choices, "")
    declared = Declaration(about, unit, meanings, at_least, above, at_most, remedy, identity, added_later, inert)
    kind = "default_factory" if callable(default) else "default"
    return dataclasses.field(**{kind: default}, metadata={KEY: declared})


def declaration(field: dataclasses.Field[Any]) -> Declaration:
    """What `setting` declared of a dataclass field; an empty declaration for a plain field."""
    return field.metadata.get(KEY) or Declaration()


def when(name: str, *values: Any, note: str = "") -> Inert:
    """Inert where another field has one of these values.

    Args:
        name: dotted name of that field; with a leading dot, in the same section.
        values: of that field.
        note: ends the reason.
    """

    def reason(section: Any, config: Any) -> str | None:
        value = _value(section, config, name)
        return f"{name.removeprefix('.')} is {value}{note}" if value in values else None

    return reason


def unless(name: str, *values: Any, note: str = "") -> Inert:
    """Inert where another field has none of these values; arguments as of `when`."""

    def reason(section: Any, config: Any) -> str | None:
        value = _value(section, config, name)
        return None if value in values else f"{name.removeprefix('.')} is {value}{note}"

    return reason


def either(*conditions: Inert) -> Inert:
    """Inert where any of these is; the first one's reason counts."""

    def reason(section: Any, config: Any) -> str | None:
        return next(filter(None, (condition(section, config) for condition in conditions)), None)

    return reason


def _value(section: Any, config: Any, name: str) -> Any:
    value = section if name.startswith(".") else config
    for part in name.removeprefix(".").split("."):
        value = getattr(value, part)
    return value


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a filled configuration.

    Attributes:
        name: dotted.
        value: what it is set to.
        declared: at its place in the schema.
        is_identity: whether it and all sections around it are part of the experiment's id.
        inert: why it cannot take effect in this configuration, or None.
    """

    name: str
    value: Any
    declared: Declaration
    is_identity: bool
    inert: str | None


def fields_of(config: Any) -> Iterator[Field]:
    """All fields of a filled configuration, in the schema's order; a mapping's entries are fields of their own."""
    yield from _walk(config, config, "", True, None)


def _walk(section: Any, config: Any, prefix: str, is_identity: bool, inert: str | None) -> Iterator[Field]:
    for each in dataclasses.fields(section):
        declared, value, name = declaration(each), getattr(section, each.name), f"{prefix}{each.name}"
        reason = inert or (declared.inert(section, config) if declared.inert is not None else None)
        is_as_before = declared.added_later and value == each.default
        yield from _expand(
            value, config, name, declared, is_identity and declared.identity and not is_as_before, reason
        )


def _expand(
    value: Any, config: Any, name: str, declared: Declaration, is_identity: bool, inert: str | None
) -> Iterator[Field]:
    if dataclasses.is_dataclass(value):
        yield from _walk(value, config, f"{name}.", is_identity, inert)
    elif isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _expand(entry, config, f"{name}.{key}", declared, is_identity, inert)
    else:
        yield Field(name, value, declared, is_identity, inert)


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a schema, filled or not.

    Attributes:
        name: dotted; `<name>` stands for the keys of a mapping.
        kind: its type, as YAML has it.
        default: as YAML has it; empty where it is a mapping's entry or a section's.
        declared: at its place in the schema.
        is_identity: whether it and all sections around it are part of the experiment's id.
    """

    name: str
    kind: str
    default: str
    declared: Declaration
    is_identity: bool

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names of filled fields that this one stands for."""
        return re.compile(re.escape(self.name).replace("<name>", "[^=]+?"))


def schema_fields(schema: type[Any], prefix: str = "", is_identity: bool = True) -> Iterator[SchemaField]:
    """All fields of a configuration dataclass and of its sections, in order; a section that may be null is one itself.

    Args:
        schema: the dataclass.
        prefix: of the names, with its dot.
        is_identity: whether the section itself is part of the id.
    """
    kinds = get_type_hints(schema)
    for each in dataclasses.fields(schema):
        declared, name = declaration(each), f"{prefix}{each.name}"
        counts = is_identity and declared.identity
        options = _options(kinds[each.name])
        section = next(option for option in options if option is not type(None))
        if get_origin(section) is dict and dataclasses.is_dataclass(get_args(section)[1]):
            section, name = get_args(section)[1], f"{name}.<name>"
        if dataclasses.is_dataclass(section):
            if type(None) in options:
                yield SchemaField(name, "section or null", "null", declared, counts)
            yield from schema_fields(section, f"{name}.", counts)  # type: ignore[arg-type]
            continue
        default = each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default
        yield SchemaField(name, _kind(kinds[each.name]), _as_yaml(default), declared, counts)


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, types.UnionType) or get_origin(kind) is Union else (kind,)


def _kind(kind: Any) -> str:
    names = {str: "text", int: "int", float: "float", bool: "bool", type(None): "null", Any: "any"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is list:
        return f"list of {_kind(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"map of {_kind(get_args(kind)[1])}"
    return " or ".join(_kind(option) for option in _options(kind))


def _as_yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    return text if text.strip() else json.dumps(text) if text else "''"
