"""Every configuration field, as its declaration says: `hacpo show fields`, docs/fields.md, and the page's sentences.

python -m flows.planning.field_table > docs/fields.md
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache

from hacpo_core.config import SEAMS, ExperimentConfig
from hacpo_core.config.fields import SchemaField, declaration, schema_fields
from hacpo_core.errors import ConfigError
from hacpo_core.methods.registry import SHIPPED

_HEAD = """# Configuration fields

Written by `python -m flows.planning.field_table` from the declarations in `hacpo_core/config` and
`hacpo_core/methods`; a test holds it up to date. `hacpo show fields [PREFIX]` prints the same. `<name>` stands for a
name that you choose.
[Brackets] say which implementations of a seam have a field. A field that is *not in the id* changes no result. A field
that is set by hand and cannot take effect in the run is an error.
"""


@cache
def all_fields() -> tuple[SchemaField, ...]:
    """Fields of all sections; those of a seam once for each implementation that is shipped."""
    found: dict[str, SchemaField] = {}
    for field in schema_fields(ExperimentConfig):
        seam = field.name.removeprefix("method.")
        for each in _of_seam(seam) if seam in SEAMS else [field]:
            found.setdefault(each.name, each)
    return tuple(found.values())


def _of_seam(seam: str) -> Iterator[SchemaField]:
    """Fields of each shipped implementation; the name says which there are, a field of some of them whose it is."""
    shipped = SHIPPED[seam]
    has = {name: {field.name for field in dataclasses.fields(each)} for name, each in shipped.items()}
    for implementation in shipped.values():
        for each in schema_fields(implementation, f"method.{seam}."):
            own = each.name.rpartition(".")[2]
            owners = [name for name in shipped if own in has[name]]
            description = each.declared.about
            of_owners = [field for name in owners for field in dataclasses.fields(shipped[name]) if field.name == own]
            choices = {value: text for field in of_owners for value, text in declaration(field).choices.items()}
            if own == "name":
                description = f"{', '.join(shipped)}, or package.module:Class of your own"
            elif len(owners) < len(shipped):
                description = f"{description} [{', '.join(owners)}]"
            yield dataclasses.replace(
                each, declared=dataclasses.replace(each.declared, about=description, choices=choices)
            )


def fields_under(prefix: str) -> list[SchemaField]:
    """Fields whose name begins so.

    Raises:
        ConfigError: there is none.
    """
    found = [field for field in all_fields() if field.name.startswith(prefix)]
    if not found:
        sections = ", ".join(dict.fromkeys(field.name.partition(".")[0] for field in all_fields()))
        raise ConfigError(f"show fields: got {prefix!r}, which no field begins with; sections are {sections}")
    return found


def about(names: Iterable[str]) -> dict[str, str]:
    """Sentence of each filled field by its dotted name; undeclared ones are left out."""
    known = {field.name: field for field in all_fields()}
    patterns = [(field.pattern, field) for field in all_fields() if "<name>" in field.name]
    found = {}
    for name in names:
        field = known.get(name) or next((field for pattern, field in patterns if pattern.fullmatch(name)), None)
        if field is not None:
            found[name] = sentence(field)
    return found


def sentence(field: SchemaField) -> str:
    """What a field is, with its unit, and what its values mean."""
    declared = field.declared
    unit = f" ({declared.unit})" if declared.unit else ""
    meanings = "; ".join(
        f"{value}: {meaning}" if meaning else str(value) for value, meaning in declared.choices.items()
    )
    return f"{declared.about}{unit}{'. ' if meanings else ''}{meanings}"


def range_of(field: SchemaField) -> str:
    """What a number may be, "" where anything goes or where choices say it."""
    return "" if field.declared.choices else field.declared.expected.removeprefix("a value ")


def print_fields(prefix: str, *, as_json: bool) -> None:
    """Fields whose name begins with `prefix`, as text or as a JSON list.

    Raises:
        ConfigError: there is none.
    """
    fields = fields_under(prefix)
    if as_json:
        names = ("name", "type", "default", "range", "about", "is_identity")
        rows = [(f.name, f.kind, f.default, range_of(f), sentence(f), f.is_identity) for f in fields]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    for field in fields:
        limits = f", {range_of(field)}" if range_of(field) else ""
        note = "" if field.is_identity else " Not in the id."
        print(f"{field.name}  ({field.kind}{limits}; default {field.default})")
        print(textwrap.fill(f"{sentence(field)}{note}", 110, initial_indent="    ", subsequent_indent="    "))


def markdown() -> str:
    """The page docs/fields.md."""
    lines = [_HEAD]
    section = None
    for field in all_fields():
        of_field = field.name.partition(".")[0] if "." in field.name else "experiment"
        if of_field != section:
            section = of_field
            lines += [f"\n## {section}\n", "| field | type | default | range | what it is |", "|---|---|---|---|---|"]
        note = "" if field.is_identity else " *Not in the id.*"
        cells = [f"`{field.name}`", field.kind, f"`{field.default}`", range_of(field), sentence(field) + note]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
