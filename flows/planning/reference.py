"""What `hacpo fields`, `hacpo methods` and `hacpo health` print: entries of a name and paragraphs, in sections."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from hacpo_core.errors import ConfigError, did_you_mean
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
    """The entry with this name, or if there is none, all whose names begin with it.

    Raises:
        ConfigError: there are none.
    """
    named = [entry for entry in entries if entry.name == name]
    named = named or [entry for entry in entries if entry.name.startswith(name)]
    if not named:
        sections = ", ".join(dict.fromkeys(entry.section for entry in entries))
        hint = did_you_mean(name, [entry.name for entry in entries])
        raise ConfigError(f"got {name!r}, but no name begins with that; {hint or f'sections are {sections}'}")
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
