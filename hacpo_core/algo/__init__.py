"""Pure mathematics: equations as functions of tensors, without I/O, logging or configuration.

A module is imported when it is first used: all bring torch, which plans and pages do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hacpo_core.algo import (
        advantages,
        calibration,
        capability,
        clipping,
        correction,
        difficulty,
        groups,
        objectives,
        ratios,
        rectangle,
    )

__all__ = [
    "advantages",
    "calibration",
    "capability",
    "clipping",
    "correction",
    "difficulty",
    "groups",
    "objectives",
    "ratios",
    "rectangle",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
