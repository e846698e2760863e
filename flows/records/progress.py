"""An experiment's progress and cost in one small file, so that a page of a thousand runs need not read their stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from flows.records.files import read_record
from hacpo_core.phases.health import Finding

PROGRESS_FILE = "progress.json"
_SECONDS = ("time/rollout_s", "time/verify_s", "time/update_s")
_GPU_SECONDS = ("gpu/rollout_s", "gpu/update_s")
"""reported for every step; methods with teachers also report teach_s"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What an agent's training has cost so far, without evaluations."""

    tokens: int = 0
    """tokens sampled"""
    seconds: float = 0.0
    """wall time of its phases"""
    gpu_s: float = 0.0
    """GPU seconds"""

    def plus(self, metrics: Mapping[str, float]) -> Spent:
        """The cost after one more step with these metrics."""
        return Spent(
            self.tokens + int(metrics["tokens/sampled"]),
            self.seconds + sum(metrics[name] for name in _SECONDS) + metrics.get("time/teach_s", 0.0),
            self.gpu_s + sum(metrics[name] for name in _GPU_SECONDS) + metrics.get("gpu/teach_s", 0.0),
        )

    @classmethod
    def sum(cls, parts: Iterable[Spent]) -> Spent:
        """Total of several costs."""
        costs = list(parts)
        return cls(sum(s.tokens for s in costs), sum(s.seconds for s in costs), sum(s.gpu_s for s in costs))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An agent's score on a benchmark after a step, and the cost of its training up to then."""

    step: int
    benchmark: str
    agent: str
    value: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class Progress:
    """Snapshot of an experiment; `rewards` are means of the last step; mappings are keyed by agent.

    `findings` are those of `hacpo_core.phases.health`, judged anew from the committed metrics by each attempt.
    """

    pair: str
    method: str
    seed: int
    step: int
    num_steps: int
    updated_at: float
    """seconds since the epoch"""
    seconds_left: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    spent: Mapping[str, Spent] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def total(self) -> Spent:
        """Cost of all agents."""
        return Spent.sum(self.spent.values())

    def latest(self, agent: str) -> list[Evaluation]:
        """An agent's evaluations after the last step that has any."""
        last = max((e.step for e in self.evaluations if e.agent == agent), default=0)
        return [e for e in self.evaluations if (e.agent, e.step) == (agent, last)]

    @property
    def open_findings(self) -> list[Finding]:
        """Findings that hold."""
        return [finding for finding in self.findings if finding.ended_at is None]

    @property
    def position(self) -> str:
        """The last committed step, as shown to users."""
        return f"step {self.step} of {self.num_steps}"

    @property
    def reward(self) -> str:
        """Mean reward of each agent, as shown to users."""
        return "mean reward " + ", ".join(f"{agent} {reward:.3f}" for agent, reward in self.rewards.items())

    @property
    def brief_reward(self) -> str:
        """The same, short and without names; empty before the first step."""
        return " ".join(["reward", *(f"{reward:.2f}" for reward in self.rewards.values())]) if self.rewards else ""

    @property
    def outcome(self) -> str:
        """Accuracies before training and after the last step, and findings that hold, as shown to users."""
        before = {(e.benchmark, e.agent): e.value for e in self.evaluations if e.step == 0}
        parts = [
            f"{e.benchmark} {e.agent} {before[e.benchmark, e.agent]:.3f} to {e.value:.3f}"
            for e in self.evaluations
            if e.step == self.step and (e.benchmark, e.agent) in before
        ]
        return ", ".join([*parts, *(f"health: {finding.brief}" for finding in self.open_findings)])


_PROGRESS = TypeAdapter(Progress)


def read_progress(root: Path) -> Progress | None:
    """Progress of the experiment in this folder; None if the file is missing or corrupt."""
    return read_record(root / PROGRESS_FILE, _PROGRESS)
