"""Which parts of a page changed since a browser last asked, so that only those are sent."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass


def version_of(*values: object) -> str:
    """Names what a part of a page shows: the same name for the same values, so that only what changed is sent."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """What a browser that saw an earlier version lacks. With `is_whole` it needs the whole page's matrix."""

    version: str
    changed: tuple[str, ...]
    is_whole: bool


class Changes:
    """Versions of one page's parts, by name."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._parts: dict[str, tuple[str, int]] = {}
        self._mutex = threading.Lock()

    def note(self, parts: Mapping[str, str], since: str = "") -> ChangedParts:
        """Take the parts as they are now, and compare.

        Args:
            parts: text by name, in the order of the page.
            since: version that the browser has; one of another process or order of parts asks for everything.
        """
        shape = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        with self._mutex:
            known = self._parts
            new = {name for name, text in parts.items() if name not in known or known[name][0] != text}
            if new:
                self._number += 1
            self._parts = {
                name: (text, self._number if name in new else known[name][1]) for name, text in parts.items()
            }
            version = f"{self._boot}.{shape}.{self._number}"
            boot, _, rest = since.partition(".")
            old_shape, _, number = rest.partition(".")
            if boot != self._boot or old_shape != shape or not number.isdigit():
                return ChangedParts(version, tuple(parts), is_whole=True)
            changed = tuple(name for name, (_, at) in self._parts.items() if at > int(number))
            return ChangedParts(version, changed, is_whole=False)
