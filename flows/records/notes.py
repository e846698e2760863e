"""Tags and a note that people keep beside an experiment, and whether it is archived; no result depends on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from flows.records.files import read_record
from flows.records.unsent import mark_changed
from hacpo_core.errors import ConfigError
from hacpo_core.files import write_json

NOTES_FILE = "notes.json"
MAX_CHARACTERS = 10_000
_TAG = re.compile(r"[\w.+:/-]{1,40}")


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes on an experiment; an archived one is left out of the table of runs unless it is asked for."""

    tags: list[str] = field(default_factory=list)
    note: str = ""
    is_archived: bool = False

    def with_tags(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Notes:
        """The notes with tags added and removed.

        Raises:
            ConfigError: a tag has characters that a filter could not name.
        """
        new_tags, old_tags = list(add), set(remove)
        for tag in new_tags:
            if not _TAG.fullmatch(tag):
                raise ConfigError(f"tag: got {tag!r}, expected at most 40 letters, digits and _ . + : / -; shorten it")
        return replace(self, tags=[tag for tag in dict.fromkeys([*self.tags, *new_tags]) if tag not in old_tags])

    def with_note(self, text: str) -> Notes:
        """The notes with another text.

        Raises:
            ConfigError: it is too long.
        """
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"note: got {len(text)} characters, expected at most {MAX_CHARACTERS}; shorten it")
        return replace(self, note=text)


_NOTES = TypeAdapter(Notes)


def read_notes(root: Path) -> Notes:
    """Notes on the experiment in this folder; empty ones if there are none."""
    return read_record(root / NOTES_FILE, _NOTES) or Notes()


def write_notes(root: Path, notes: Notes) -> None:
    """Store the notes in the experiment's folder; MLflow gets them later if it has the experiment."""
    write_json(root / NOTES_FILE, asdict(notes))
    mark_changed(root)
