"""The switch of all that this folder holds: with it off, passes run on public torch and transformers alone."""

from __future__ import annotations

_is_on = True


def use_speedups(is_on: bool) -> None:
    """Set the switch for this process: `engine.speedups` of the agent that is loaded."""
    global _is_on
    _is_on = is_on


def has_speedups() -> bool:
    """Whether the switch is on."""
    return _is_on
