"""Keeps packages that are installed from being imported by others for things that nothing here does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def unavailable(*packages: str) -> Iterator[None]:
    """Imports inside find none of these packages, unless somebody has imported one before.

    What is imported inside may remember that they are not there, as transformers does. Other threads must import none
    of them meanwhile.
    """
    modules: MutableMapping[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None: not to be found
    hidden = [package for package in packages if package not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for package in hidden:
            modules.pop(package, None)
