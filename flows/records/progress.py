"""How far an experiment is and what it has cost, in one small file: a page of a thousand runs reads no store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.records.recordfile import read_record
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
"""of every step; those with teachers have teach_s, too"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What an agent's training has cost so far, evaluations left out."""

    tokens: int = 0
    """sampled"""
    seconds: float = 0.0
    """of its phases, on the wall"""
    gpu_s: float = 0.0

    def plus(self, metrics: Mapping[str, float]) -> Spent:
        """After one more step with these metrics."""
        return Spent(
            self.tokens + int(metrics["tokens/sampled"]),
            self.seconds + sum(metrics[name] for name in _SECONDS) + metrics.get("time/teach_s", 0.0),
            self.gpu_s + sum(metrics[name] for name in _GPU_SECONDS) + metrics.get("gpu/teach_s", 0.0),
        )

    @classmethod
    def sum(cls, parts: Iterable[Spent]) -> Spent:
        """All of them together."""
        found = list(parts)
        return cls(sum(s.tokens for s in found), sum(s.seconds for s in found), sum(s.gpu_s for s in found))


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An agent's value on a benchmark after a step, and what its training had cost by then."""

    step: int
    benchmark: str
    agent: str
    value: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class Progress:
    """An experiment at one moment; rewards are of the last step, all mappings by agent."""

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
    """Progress of the experiment in this folder; None where no file says it, or a torn one."""
    return read_record(root / PROGRESS_FILE, _PROGRESS)


class ProgressFile:
    """A watcher that keeps an experiment's progress file, and passes everything on to another watcher.

    It begins with what the store holds up to a step, so a resumed run counts nothing twice.
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
        found = list(evaluations)
        for past in range(step + 1):
            if past:
                self._count(store.metrics(past))
            for result in found:
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
        except StoreError as error:  # the store itself stops the run where it cannot write
            _log.warning("progress is not shown: %s", error)

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """Passed on."""
        self._inner.warmed_up(agent, step, num_steps, loss)

    def evaluated(self, step: int, benchmark: str, agent: str, accuracy: float, /) -> None:
        """Another point of the accuracy's curve."""
        self._inner.evaluated(step, benchmark, agent, accuracy)
        self._note(step, benchmark, agent, accuracy)
        self._write()

    def stepped(self, step: int, num_steps: int, metrics: Mapping[str, Any], seconds_left: float | None) -> None:
        """One step further."""
        self._inner.stepped(step, num_steps, metrics, seconds_left)
        self._step, self._seconds_left = step, seconds_left
        self._count(metrics)
        self._write()
