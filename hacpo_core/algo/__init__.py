"""Pure mathematics: equations as functions of tensors, without I/O, logging or configuration.

Modules are imported on first use: they import torch, which is slow and which plans and the dashboard do not need.
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
        gain_network,
        groups,
        objectives,
        ratios,
        rewards,
    )


def __getattr__(name: str) -> Any:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
