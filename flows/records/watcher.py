"""Whoever is told how far an experiment is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Watcher(Protocol):
    """Told what happens, to show it to a person."""

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """A warm-up went one step further."""

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """A training step is committed."""

    def evaluated(self, step: int, benchmark: str, agent: str, accuracy: float, /) -> None:
        """An agent was evaluated."""


class QuietWatcher:
    """Shows nothing."""

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """Nothing."""

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """Nothing."""

    def evaluated(self, step: int, benchmark: str, agent: str, accuracy: float) -> None:
        """Nothing."""
