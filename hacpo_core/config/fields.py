"""Declarations of configuration fields: default, description, unit, allowed values, and when a field has no effect.

Every field of a configuration dataclass is declared with `setting`. Validation, the experiment's id, `hacpo
fields` and the dashboard all read this declaration.
"""

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hacpo_core.errors import ConfigError

KEY = "hacpo"
"""key of a field's `Declaration` in the dataclass field's metadata"""

Inert = Callable[[Any, Any], str | None]
"""(section of the field, whole configuration) -> why the field cannot take effect, or None"""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything about a field except its name, type and default.

    Attributes:
        about: description, one sentence.
        unit: of a number, such as tokens or GiB.
        choices: allowed values, each with its meaning; empty: any value.
        at_least, above, at_most: range of a number; `above` excludes the bound itself.
        contains: placeholder that a text must contain; empty: any text.
        remedy: hint added to the error message for a value out of range.
        identity: False if the field changes no result and is not part of the experiment's id.
        inert: returns why the field cannot take effect in a configuration, or None.
    """

    about: str = ""
    unit: str = ""
    choices: Mapping[Any, str] = field(default_factory=dict)
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    contains: str = ""
    remedy: str = ""
    identity: bool = True
    inert: Inert | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether it is a number with a range."""
        return any(bound is not None for bound in (self.at_least, self.above, self.at_most))

    @property
    def expected(self) -> str:
        """Allowed values in words; empty if only the type restricts them."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.contains:
            return f"a text with {self.contains}"
        if not self.is_bounded:
            return ""
        bracket, minimum = ("[", self.at_least) if self.above is None else ("(", self.above)
        if minimum is None:
            return f"a value of at most {self.at_most:g}"
        if self.at_most is not None:
            return f"a value in {bracket}{minimum:g}, {self.at_most:g}]"
        return f"a value of at least {minimum:g}" if bracket == "[" else f"a value above {minimum:g}"

    def check(self, name: str, value: Any) -> None:
        """Check that a value is allowed. None always passes here, since the field's type decides about it.

        Raises:
            ConfigError: the value is not allowed; the message begins with `name`.
        """
        if value is None:
            return
        is_right = True
        if self.choices:
            is_right = value in self.choices
        elif self.contains:
            is_right = self.contains in value
        elif self.is_bounded:
            minimum = -math.inf if self.at_least is None else self.at_least
            is_above = value >= minimum if self.above is None else value > self.above
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
    contains: str = "",
    remedy: str = "",
    identity: bool = True,
    inert: Inert | None = None,
) -> Any:
    """A dataclass field with its declaration. A callable default (`dict`, a section) is used as a factory."""
    meanings = choices if isinstance(choices, Mapping) else dict.fromkeys(choices, "")
    declared = Declaration(about, unit, meanings, at_least, above, at_most, contains, remedy, identity, inert)
    kind = "default_factory" if callable(default) else "default"
    return dataclasses.field(**{kind: default}, metadata={KEY: declared})


def declaration(field: dataclasses.Field[Any]) -> Declaration:
    """The declaration of a dataclass field; an empty one for a field without `setting`."""
    return field.metadata.get(KEY) or Declaration()


def when(name: str, *values: Any) -> Inert:
    """Condition: inert if another field has one of these values.

    Args:
        name: dotted name of that field; with a leading dot, in the same section.
        values: of that field.
    """

    def reason(section: Any, config: Any) -> str | None:
        value = _value(section, config, name)
        return f"{name.removeprefix('.')} is {value}" if value in values else None

    return reason


def unless(name: str, *values: Any) -> Inert:
    """Condition: inert if another field has none of these values; arguments as for `when`."""

    def reason(section: Any, config: Any) -> str | None:
        value = _value(section, config, name)
        return None if value in values else f"{name.removeprefix('.')} is {value}"

    return reason


def either(*conditions: Inert) -> Inert:
    """Condition: inert if any of these is; the reason is that of the first one."""

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
    """One field of a complete configuration.

    Attributes:
        name: dotted.
        value: its value.
        declared: its declaration in the schema.
        is_identity: whether it and all sections around it are part of the experiment's id.
        inert: why it cannot take effect in this configuration, or None.
        is_default: whether the schema's default is its value.
    """

    name: str
    value: Any
    declared: Declaration
    is_identity: bool
    inert: str | None
    is_default: bool


def fields_of(config: Any) -> Iterator[Field]:
    """All fields of a complete configuration, in the schema's order; each entry of a mapping is a field."""
    yield from _walk(config, config, "", True, None)


def _walk(section: Any, config: Any, prefix: str, is_identity: bool, inert: str | None) -> Iterator[Field]:
    for section_field in dataclasses.fields(section):
        declared, value = declaration(section_field), getattr(section, section_field.name)
        reason = inert or (declared.inert(section, config) if declared.inert is not None else None)
        is_default = value == _default(section_field)
        name = f"{prefix}{section_field.name}"
        yield from _expand(value, config, name, declared, is_identity and declared.identity, reason, is_default)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _expand(
    value: Any, config: Any, name: str, declared: Declaration, is_identity: bool, inert: str | None, is_default: bool
) -> Iterator[Field]:
    if dataclasses.is_dataclass(value):
        yield from _walk(value, config, f"{name}.", is_identity, inert)
    elif isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _expand(entry, config, f"{name}.{key}", declared, is_identity, inert, is_default)
    else:
        yield Field(name, value, declared, is_identity, inert, is_default)


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a schema, independent of a configuration.

    Attributes:
        name: dotted; `<name>` stands for the keys of a mapping.
        kind: its type, in YAML's terms.
        default: in YAML syntax.
        declared: its declaration in the schema.
        is_identity: whether it and all sections around it are part of the experiment's id.
    """

    name: str
    kind: str
    default: str
    declared: Declaration
    is_identity: bool

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names of the configuration's fields that this schema field stands for."""
        return re.compile(re.escape(self.name).replace("<name>", "[^=]+?"))


def schema_fields(schema: type[Any], prefix: str = "", is_identity: bool = True) -> Iterator[SchemaField]:
    """All fields of a configuration dataclass and its sections, in order. A section that may be null is a field too.

    Args:
        schema: the dataclass.
        prefix: of the names, including the trailing dot.
        is_identity: whether the section itself is part of the id.
    """
    kinds = get_type_hints(schema)
    for schema_field in dataclasses.fields(schema):
        declared, name = declaration(schema_field), f"{prefix}{schema_field.name}"
        counts = is_identity and declared.identity
        alternatives = options(kinds[schema_field.name])
        section = next(alternative for alternative in alternatives if alternative is not type(None))
        if get_origin(section) is dict and dataclasses.is_dataclass(get_args(section)[1]):
            section, name = get_args(section)[1], f"{name}.<name>"
        if dataclasses.is_dataclass(section):
            if type(None) in alternatives:
                yield SchemaField(name, "section or null", "null", declared, counts)
            yield from schema_fields(section, f"{name}.", counts)  # type: ignore[arg-type]
            continue
        default = _as_yaml(_default(schema_field))
        yield SchemaField(name, _kind(kinds[schema_field.name]), default, declared, counts)


def options(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union type; the type itself if it is none."""
    return get_args(kind) if isinstance(kind, types.UnionType) or get_origin(kind) is Union else (kind,)


def _kind(kind: Any) -> str:
    names = {str: "text", int: "int", float: "float", bool: "bool", type(None): "null", Any: "any"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Literal:
        return names[type(get_args(kind)[0])]
    if get_origin(kind) is list:
        return f"list of {_kind(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"map of {_kind(get_args(kind)[1])}"
    return " or ".join(_kind(option) for option in options(kind))


def _as_yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    return text if text.strip() else json.dumps(text) if text else "''"
