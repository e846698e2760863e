"""Interface for progress displays: called at each event of a running experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Watcher(Protocol):
    """Receives the events of a running experiment."""

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """A warm-up step is done."""

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """A training step is committed."""

    def evaluated(self, step: int, benchmark: str, agent: str, accuracy: float, /) -> None:
        """An agent was evaluated."""


class QuietWatcher:
    """Ignores every event."""

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """See `Watcher`."""

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """See `Watcher`."""

    def evaluated(self, step: int, benchmark: str, agent: str, accuracy: float) -> None:
        """See `Watcher`."""
