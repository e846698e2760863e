"""All configuration fields, for `hacpo fields`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

from flows.planning.reference import Entry
from hacpo_core.config import PARTS, ExperimentConfig
from hacpo_core.config.fields import SchemaField, declaration, schema_fields
from hacpo_core.methods.registry import SHIPPED


@cache
def all_fields() -> tuple[SchemaField, ...]:
    """Fields of all sections, including the fields of every shipped implementation of each part."""
    by_name: dict[str, SchemaField] = {}
    for field in schema_fields(ExperimentConfig):
        part = field.name.removeprefix("method.")
        for part_field in _part_fields(part) if part in PARTS else [field]:
            by_name.setdefault(part_field.name, part_field)
    return tuple(by_name.values())


def _part_fields(part: str) -> Iterator[SchemaField]:
    """Fields of each shipped implementation of a part.

    `name` lists the implementations; a field that not all of them have lists its owners.
    """
    shipped = SHIPPED[part]
    owners: dict[str, dict[str, dataclasses.Field[object]]] = {}
    for name, implementation in shipped.items():
        for field in dataclasses.fields(implementation):
            owners.setdefault(field.name, {})[name] = field
    for implementation in shipped.values():
        for part_field in schema_fields(implementation, f"method.{part}."):
            variants, about = owners[part_field.name.rpartition(".")[2]], part_field.declared.about
            choices = {value: text for f in variants.values() for value, text in declaration(f).choices.items()}
            if part_field.name == f"method.{part}.name":
                about = f"{', '.join(shipped)}, or your own package.module:Class"
            elif len(variants) < len(shipped):
                about = f"{about} [{', '.join(variants)}]"
            declared = dataclasses.replace(part_field.declared, about=about, choices=choices)
            yield dataclasses.replace(part_field, declared=declared)


def _sentence(field: SchemaField) -> str:
    """Description of a field, with its unit and the meaning of its values."""
    declared = field.declared
    unit = f" ({declared.unit})" if declared.unit else ""
    meanings = "; ".join(
        f"{value}: {meaning}" if meaning else str(value) for value, meaning in declared.choices.items()
    )
    return f"{declared.about}{unit}{'. ' if meanings else ''}{meanings}"


def field_entries() -> list[Entry]:
    """An entry for each field: type, range, default, description, and whether it is part of an experiment's id."""
    entries = []
    for field in all_fields():
        section = field.name.partition(".")[0] if "." in field.name else "experiment"
        limits = "" if field.declared.choices else field.declared.expected.removeprefix("a value ")
        note = f"{field.kind}{limits and f', {limits}'}; default {field.default}"
        outside = "" if field.is_identity else "; not in the id"
        entries.append(Entry(section, field.name, note, (f"{_sentence(field)}{outside}",)))
    return entries
