"""Timeline of a run: phases as intervals, from their commit times and durations, and how long agents waited."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hacpo_core.errors import StoreError
from hacpo_core.files import read_json
from hacpo_core.store.steps import MANIFEST, StepStore

_log = logging.getLogger(__name__)
_MAX_SHOWN_STEPS = 30
PHASE_KINDS = ("rollout", "verify", "advantage", "teach", "update")
JOINT = "all agents"
"""the row of phases that are not of a single agent"""
_FILES = {"rollout": "rollouts", "verify": "verdicts", "advantage": "advantages", "teach": "taught", "update": "update"}


@dataclass(frozen=True, slots=True)
class TimedPhase:
    """One phase of one step; `start` and `end` in seconds since the epoch."""

    step: int
    kind: str
    agent: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Duration of the phase, s."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Wait:
    """How long an agent was busy, and how long its verified responses waited for the joint advantage phase."""

    agent: str
    busy_s: float
    waited_s: float
    last: Mapping[str, int]
    """by agent, the number of steps in which that agent was the last to finish"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase in the figure: x and width in units of 1/1000 of its width, row from 0."""

    phase: TimedPhase
    x: float
    width: float
    row: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Phases and waits of some steps of a run."""

    first: int
    last: int
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    waits: tuple[Wait, ...]
    seconds: float


def read_phases(root: Path, steps: Sequence[int]) -> list[TimedPhase]:
    """Committed phases of these steps with a recorded duration, ordered by end time."""
    store = StepStore(root)
    phases = []
    for step in steps:
        path = store.folder(step) / MANIFEST
        try:
            entries = read_json(path)["phases"] if path.is_file() else {}
        except (StoreError, KeyError, TypeError):
            _log.info("%s is corrupt and not shown", path)
            continue
        for name, entry in entries.items():
            kind, _, agent = name.partition(".")
            if kind in PHASE_KINDS:
                seconds = _seconds(store, step, name, f"{_FILES[kind]}{'.' if agent else ''}{agent}.json")
                if seconds is not None:
                    end = float(entry["committed_at"])
                    phases.append(TimedPhase(step, kind, agent or JOINT, end - seconds, end))
    return sorted(phases, key=lambda phase: phase.end)


def _seconds(store: StepStore, step: int, phase: str, file: str) -> float | None:
    try:
        value: Any = store.read_value(step, phase, file)
        return float(value.get("cost", value)["seconds"])
    except (StoreError, KeyError, TypeError, AttributeError):
        return None


def waits(phases: Sequence[TimedPhase]) -> list[Wait]:
    """For each agent, how long its verified responses waited for the advantage phase, and for which agents."""
    agents = list(dict.fromkeys(phase.agent for phase in phases if phase.agent != JOINT))
    waited, last = dict.fromkeys(agents, 0.0), {agent: dict[str, int]() for agent in agents}
    for step in sorted({phase.step for phase in phases}):
        ends = {p.agent: p.end for p in phases if p.step == step and p.kind == "verify"}
        joint = next((p.start for p in phases if p.step == step and p.kind == "advantage"), None)
        if joint is None or len(ends) < 2:
            continue
        slowest = max(ends, key=lambda agent: ends[agent])
        for agent, end in ends.items():
            waited[agent] += max(joint - end, 0.0)
            if agent != slowest:
                last[agent][slowest] = last[agent].get(slowest, 0) + 1
    busy = {agent: sum(p.seconds for p in phases if p.agent == agent) for agent in agents}
    return [Wait(agent, busy[agent], waited[agent], last[agent]) for agent in agents]


def lay_out(phases: Sequence[TimedPhase]) -> tuple[tuple[str, ...], tuple[Bar, ...], float]:
    """Rows, bars and time span (s) of the figure; bars have a minimum width to remain visible."""
    if not phases:
        return (), (), 0.0
    rows = tuple(sorted({phase.agent for phase in phases}, key=lambda name: (name == JOINT, name)))
    start, end = min(phase.start for phase in phases), max(phase.end for phase in phases)
    scale = 1000 / max(end - start, 1e-9)
    bars = tuple(
        Bar(
            phase,
            round((phase.start - start) * scale, 2),
            max(round(phase.seconds * scale, 2), 1.0),
            rows.index(phase.agent),
        )
        for phase in phases
    )
    return rows, bars, end - start


def timeline(root: Path, first: int, last: int) -> Timeline:
    """The timeline of steps `first` to `last`, limited to the last _MAX_SHOWN_STEPS of them."""
    first = max(first, last - _MAX_SHOWN_STEPS + 1, 1)
    phases = read_phases(root, range(first, last + 1))
    rows, bars, seconds = lay_out(phases)
    return Timeline(first, last, rows, bars, tuple(waits(phases)), seconds)
