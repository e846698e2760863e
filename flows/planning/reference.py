"""What `hacpo fields`, `methods` and `health` print: an entry for each field, method, part of a method, and rule."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from flows.planning.compose import compose
from flows.planning.declarations import DECLARATION_FOLDERS, available, read_declaration, read_yaml
from hacpo_core.config import PARTS, ExperimentConfig, flatten
from hacpo_core.config.fields import SchemaField, declaration, schema_fields
from hacpo_core.errors import ConfigError, did_you_mean
from hacpo_core.methods.registry import SHIPPED
from hacpo_core.phases.health_rules import RULES


@dataclass(frozen=True, slots=True)
class Entry:
    """One field, method, part of a method, or rule of health.

    Attributes:
        section: heading that it stands under.
        name: its own.
        note: a few words behind the name.
        paragraphs: what it is; one with several lines, such as a docstring with equations, keeps them.
    """

    section: str
    name: str
    note: str
    paragraphs: tuple[str, ...]


def entries_named(entries: Sequence[Entry], name: str) -> list[Entry]:
    """The entry with this name, or if there is none, all whose names begin with it, or whose description has it.

    Raises:
        ConfigError: there are none.
    """
    named = [entry for entry in entries if entry.name == name]
    named = named or [entry for entry in entries if entry.name.startswith(name)]
    named = named or [entry for entry in entries if re.search(rf"\b{re.escape(name)}\b", entry.paragraphs[0])]
    if not named:
        sections = ", ".join(dict.fromkeys(entry.section for entry in entries))
        hint = did_you_mean(name, [entry.name for entry in entries])
        raise ConfigError(f"got {name!r}, but no name and no description has it; {hint or f'sections are {sections}'}")
    return named


def print_entries(entries: Sequence[Entry], form: str) -> None:
    """Print entries as text for a terminal, or as markdown for a site."""
    section = ""
    for entry in entries:
        if form == "text":
            print(f"{entry.name}  ({entry.note})")
            print(*(_indented(text) for text in entry.paragraphs), sep="\n")
            continue
        if entry.section != section:
            section = entry.section
            print(f"## {section}\n")
        print(f"### {entry.name}\n\n{entry.note}\n")
        print(*(f"```\n{text}\n```\n" if "\n" in text else f"{text}\n" for text in entry.paragraphs), sep="\n")


def _indented(text: str) -> str:
    if "\n" in text:
        return textwrap.indent(text, "    ")
    return textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)


def health_entries() -> list[Entry]:
    """An entry for each rule of health: when it holds, what it reads, and what to do."""
    return [
        Entry("health", rule.name, f"holds when {rule.criterion}", (f"Reads: {', '.join(rule.metrics)}", rule.remedy))
        for rule in RULES.values()
    ]


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


def method_entries() -> list[Entry]:
    """An entry for each file of experiments/methods: its two comments, its parts and what it sets of them."""
    return [_method_entry(name) for name in available("method")]


def part_entries() -> list[Entry]:
    """An entry for each shipped part: its docstring, with the equation and the source, and its fields."""
    return [_part_entry(part, name) for part in PARTS for name in SHIPPED[part]]


def entries_of(name: str) -> list[Entry]:
    """The entry of a method with those of its parts, or of a part.

    Raises:
        ConfigError: there is none with this name.
    """
    if name not in available("method"):
        return entries_named([*part_entries(), *method_entries()], name)
    method = compose("tiny", name).method
    return [_method_entry(name), *(_part_entry(part, getattr(method, part).name) for part in PARTS)]


def _method_entry(name: str) -> Entry:
    file = files("experiments") / DECLARATION_FOLDERS["method"] / f"{name}.yaml"
    about, source = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
    declared = read_declaration("method", name)["method"]  # to compose and check all methods takes seconds
    base = read_yaml(files("experiments") / "base.yaml")["method"]
    method: Any = OmegaConf.merge(base, declared)
    parts = ", ".join(f"{part} {method[part].name}" for part in PARTS)
    tree: Any = OmegaConf.to_container(declared)
    settings = ", ".join(
        f"method.{field}={value}"
        for field, value in flatten(tree).items()
        if "." in field and not field.endswith(".name")
    )
    note = f"{'shares rollouts' if tree.get('shares_rollouts', True) else 'own rollouts'}; {parts}"
    return Entry("methods", name, note, (about, source, *([f"Sets {settings}"] if settings else [])))


def _part_entry(part: str, name: str) -> Entry:
    implementation = SHIPPED[part][name]
    fields = [field for field in dataclasses.fields(implementation) if field.name != "name"]
    lines = [f"{field.name}: {declaration(field).about} (default {field.default!r})" for field in fields]
    return Entry(
        part, name, f"{part}; {implementation.__module__}", (inspect.cleandoc(implementation.__doc__ or ""), *lines)
    )
