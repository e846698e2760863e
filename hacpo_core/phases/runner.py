"""The phase of a step as a unit of work, and runners, which decide when and how phases run."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hacpo_core.errors import AgentLostError
from hacpo_core.store.steps import phase_name

MAX_RESTARTS = 2
"""restarts of an agent's process in a phase, which fails if the process dies once more"""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def restarting(work: Callable[[], Result]) -> Result:
    """Result of `work`, which is repeated if an agent's process dies meanwhile: the agent is then started again."""
    for restarts in range(MAX_RESTARTS + 1):
        try:
            return work()
        except AgentLostError as error:
            if restarts == MAX_RESTARTS:
                raise
            _log.warning("%s; starting it again", error)
    raise AssertionError("the last loss is raised")


@dataclass(frozen=True, slots=True)
class Phase:
    """One unit of work: its kind, step, agent (None: all together) and round of sampling."""

    kind: str
    step: int
    agent: str | None = None
    round: int = 0

    @property
    def name(self) -> str:
        """Name in the step store."""
        return self.kind if self.agent is None else phase_name(self.kind, self.agent, self.round)

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs a model."""
        kind = self.kind.partition(".")[0]  # of a shard: answer.<benchmark>.<first>-<end>
        return kind in ("rollout", "teach", "update", "answer", "score")


class Handle(Protocol):
    """A phase that was started."""

    def result(self) -> None:
        """Wait until the phase has committed its output; raises what the phase raised."""


class Runner(Protocol):
    """Decides when and how phases run."""

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run `work` once everything in `after` is done."""

    def wait(self) -> None:
        """Start no further phases and wait for the running ones."""


class DoneHandle:
    """Handle of a phase that is already done."""

    def result(self) -> None:
        """Return at once."""


class DirectRunner:
    """Runs every phase immediately, in the calling thread: for tests, notebooks and library users."""

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """Run `work` now."""
        restarting(work)
        return DoneHandle()

    def wait(self) -> None:
        """Return at once: no phase is running."""
