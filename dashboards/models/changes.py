"""Tracks which parts of a page have changed since a browser's last request, so that only those are sent."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass


def version_of(*values: object) -> str:
    """Version of the content of a page part: equal for equal values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """Parts that changed since the browser's version; with `is_whole`, the whole matrix must be sent."""

    version: str
    changed: tuple[str, ...]
    is_whole: bool


class Changes:
    """Versions of the parts of one page, by name."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._parts: dict[str, tuple[str, int]] = {}
        self._mutex = threading.Lock()

    def note(self, parts: Mapping[str, str], since: str = "") -> ChangedParts:
        """Record the current parts and compare them with an earlier version.

        Args:
            parts: text by name, in page order.
            since: version that the browser has; if the process or the set of parts has changed, all parts are returned.
        """
        shape = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        with self._mutex:
            earlier_parts = self._parts
            new_names = {
                name for name, text in parts.items() if name not in earlier_parts or earlier_parts[name][0] != text
            }
            if new_names:
                self._number += 1
            self._parts = {
                name: (text, self._number if name in new_names else earlier_parts[name][1])
                for name, text in parts.items()
            }
            version = f"{self._boot}.{shape}.{self._number}"
            boot, _, rest = since.partition(".")
            old_shape, _, number = rest.partition(".")
            if boot != self._boot or old_shape != shape or not number.isdigit():
                return ChangedParts(version, tuple(parts), is_whole=True)
            changed = tuple(name for name, (_, at) in self._parts.items() if at > int(number))
            return ChangedParts(version, changed, is_whole=False)
