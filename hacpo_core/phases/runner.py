"""Phases of a step, and who decides when and how they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hacpo_core.store.steps import phase_name


@dataclass(frozen=True, slots=True)
class Phase:
    """One unit of work: what, at which step, for which agent (None: for all together), in which round of sampling."""

    kind: str
    step: int
    agent: str | None = None
    round: int = 0

    @property
    def name(self) -> str:
        """Name under which the step store knows it."""
        return self.kind if self.agent is None else phase_name(self.kind, self.agent, self.round)

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs a model."""
        return self.kind.split(".")[0] in ("rollout", "teach", "update", "answer")


class Handle(Protocol):
    """A phase that was started."""

    def result(self) -> None:
        """Wait until the phase has committed its output; raises what the phase raised."""


class Runner(Protocol):
    """Decides when and how phases run."""

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run `work` once everything in `after` is done."""

    def wait(self) -> None:
        """Begin nothing more, and wait until what has begun is done."""


class Done:
    """Handle of a phase that has run already."""

    def result(self) -> None:
        """Nothing to wait for."""


class DirectRunner:
    """Calls every phase on the spot: for tests, notebooks and library users."""

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run `work` now."""
        work()
        return Done()

    def wait(self) -> None:
        """Nothing is under way."""
