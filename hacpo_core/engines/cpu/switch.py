"""Switch for everything in this folder. If it is off, only torch and transformers are used."""

from __future__ import annotations

_is_on = True


def use_speedups(is_on: bool) -> None:
    """Set the switch for this process, to `engine.speedups` of the loaded agent."""
    global _is_on
    _is_on = is_on


def has_speedups() -> bool:
    """Whether the switch is on."""
    return _is_on
