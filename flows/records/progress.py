"""An experiment's progress and cost in one small file, so that a page of a thousand runs need not read their stores."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.records.recordfile import read_record
from flows.records.runlog import log_entry
from flows.records.watcher import Watcher
from hacpo_core.config import ExperimentConfig
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.results import EvaluationResult
from hacpo_core.store.files import write_json
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)
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
class Evaluated:
    """An agent's score on a benchmark after a step, and the cost of its training up to then."""

    step: int
    benchmark: str
    agent: str
    value: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class Progress:
    """Snapshot of an experiment; `rewards` are means of the last step; mappings are keyed by agent."""

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
    evaluations: list[Evaluated] = field(default_factory=list)


_PROGRESS = TypeAdapter(Progress)


def read_progress(root: Path) -> Progress | None:
    """Progress of the experiment in this folder; None if the file is missing or corrupt."""
    return read_record(root / PROGRESS_FILE, _PROGRESS)


class ProgressFile:
    """A watcher that updates an experiment's progress file and forwards every event to another watcher.

    It starts from the committed metrics up to `step`, so that a resumed run counts nothing twice.
    """

    def __init__(
        self,
        store: StepStore,
        config: ExperimentConfig,
        *,
        step: int,
        evaluations: Iterable[EvaluationResult],
        inner: Watcher,
    ) -> None:
        self._path, self._inner, self._config = store.root / PROGRESS_FILE, inner, config
        self._step = step
        self._seconds_left: float | None = None
        self._rewards: dict[str, float] = {}
        self._spent = dict.fromkeys(config.pair.agents, Spent())
        self._evaluations: dict[tuple[int, str, str], Evaluated] = {}
        results = list(evaluations)
        for past in range(step + 1):
            if past:
                self._count(store.metrics(past))
            for result in results:
                if result.step == past:
                    self._note(past, result.benchmark, result.agent, result.value)
        self._write()

    def _count(self, metrics: Mapping[str, Any]) -> None:
        for agent, values in metrics["agents"].items():
            self._spent[agent] = self._spent[agent].plus(values)
            self._rewards[agent] = values["reward/mean"]

    def _note(self, step: int, benchmark: str, agent: str, value: float) -> None:
        self._evaluations[step, benchmark, agent] = Evaluated(step, benchmark, agent, value, self._spent[agent])

    def _write(self) -> None:
        progress = Progress(
            pair=self._config.pair.name,
            method=self._config.method.name,
            seed=self._config.seed,
            step=self._step,
            num_steps=self._config.train.num_steps,
            updated_at=time.time(),
            seconds_left=self._seconds_left,
            rewards=self._rewards,
            spent=self._spent,
            evaluations=list(self._evaluations.values()),
        )
        try:
            write_json(self._path, asdict(progress), syncs=False)
        except StoreError as error:  # if the disk is full, the step store stops the run
            _log.warning("progress file not updated: %s", error)

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """Forward the event."""
        self._inner.warmed_up(agent, step, num_steps, loss)

    def evaluated(self, step: int, benchmark: str, agent: str, accuracy: float, /) -> None:
        """Record an accuracy."""
        self._inner.evaluated(step, benchmark, agent, accuracy)
        log_entry("step", f"step {step}: {agent} on {benchmark} {accuracy:.3f}")
        self._note(step, benchmark, agent, accuracy)
        self._write()

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """Record a committed step."""
        self._inner.stepped(step, num_steps, metrics, seconds_left)
        rewards = ", ".join(f"{agent} {values['reward/mean']:.3f}" for agent, values in metrics["agents"].items())
        log_entry("step", f"step {step} of {num_steps}: mean reward {rewards}")
        self._step, self._seconds_left = step, seconds_left
        self._count(metrics)
        self._write()
