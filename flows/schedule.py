"""Experiments as runs of a Prefect deployment: submitted once, retried, cancelled, put before others, or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.server import ServerRecord
from hacpo_core.errors import HacpoError

PRIORITIES = ("high", "normal", "low")
"""work queues of the pool, the first served first"""
LIVE = ("Scheduled", "Pending", "Running", "Paused", "Cancelling")
"""states of a run that a worker has or will have; the others are Completed, Failed, Crashed, Cancelled"""


class RefusedError(HacpoError):
    """What was asked of a run cannot be done in its state; the message says why."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """The newest flow run of an experiment."""

    id: str
    """of the flow run, for links into Prefect's page"""
    experiment: str
    state: str
    """Prefect's name of the state's type, capitalised: one of LIVE, or Completed, Failed, Crashed, Cancelled"""
    message: str
    priority: str
    num_starts: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker that Prefect has heard of lately."""

    name: str
    num_slots: int


class Schedule:
    """The experiments of one runs folder on one Prefect server; every method may be called from any thread."""

    def __init__(self, server: ServerRecord, runs_dir: Path) -> None:
        raise NotImplementedError

    def runs(self) -> Mapping[str, ScheduledRun]:
        """Newest run of every experiment of this folder, by experiment id."""
        raise NotImplementedError

    def workers(self) -> Sequence[WorkerRecord]:
        """Workers that are alive."""
        raise NotImplementedError

    def start(self, experiment: str, priority: str = "normal") -> ScheduledRun:
        """Let a worker train a planned experiment from wherever its store stands: submit it, or retry its run.

        Raises:
            RefusedError: it is complete, or scheduled, or being trained.
        """
        raise NotImplementedError

    def cancel(self, experiment: str) -> None:
        """Take it off the queue, or end its process; what it committed stays.

        Raises:
            RefusedError: nothing of it is scheduled or running; or it is trained by a command that no worker owns.
        """
        raise NotImplementedError

    def set_priority(self, experiment: str, priority: str) -> None:
        """Put it into another queue.

        Raises:
            RefusedError: it is not waiting in a queue.
        """
        raise NotImplementedError
