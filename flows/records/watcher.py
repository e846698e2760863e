"""Observers of a running experiment, and the recorder that counts its progress for them."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from flows.records.progress import PROGRESS_FILE, Evaluation, Progress, Spent, read_progress
from flows.records.runlog import log_entry
from hacpo_core.config import ExperimentConfig
from hacpo_core.errors import StoreError
from hacpo_core.evaluation.results import EvaluationResult, health_values
from hacpo_core.evaluation.stopping import last_step
from hacpo_core.files import write_json
from hacpo_core.phases.health import Finding, Health
from hacpo_core.store.steps import StepStore

_log = logging.getLogger(__name__)


class Watcher:
    """Receives the events of a running experiment. This class ignores them; subclasses override what they need."""

    def warmed_up(self, agent: str, step: int, num_steps: int, loss: float) -> None:
        """A warm-up step is done."""

    def stepped(self, progress: Progress) -> None:
        """A training step is committed."""

    def evaluated(self, result: EvaluationResult) -> None:
        """An agent was evaluated."""

    def judged(self, finding: Finding) -> None:
        """A finding about the run's health has begun, or has ended."""


class ProgressRecorder:
    """Counts an experiment's progress, writes it to the progress file and the log, and passes it to a watcher.

    It starts from the committed metrics up to `step`, so that a resumed run counts nothing twice. Health is judged from
    all committed metrics; a finding that an earlier attempt told, according to its progress file, is not told again.
    """

    def __init__(
        self,
        store: StepStore,
        config: ExperimentConfig,
        *,
        step: int,
        evaluations: Iterable[EvaluationResult],
        watcher: Watcher,
    ) -> None:
        self._store, self._config, self._watcher = store, config, watcher
        self._step, self._num_steps = step, last_step(store.root, config)
        self._seconds_left: float | None = None
        self._rewards: dict[str, float] = {}
        self._spent = dict.fromkeys(config.pair.agents, Spent())
        self._evaluations: dict[tuple[int, str, str], Evaluation] = {}
        self._health, self._judged_step = Health(config), 0
        before = read_progress(store.root)
        earlier_findings = before.findings if before is not None else []
        self._told = {event.key for finding in earlier_findings for event in finding.events}
        results = list(evaluations)
        for past_step in range(step + 1):
            if past_step:
                self._count(past_step)
            for result in results:
                if result.step == past_step:
                    self._note(result)
        self._judge(max(step, store.num_complete()))
        self._write()

    def _judge(self, last: int) -> None:
        """Judge the committed steps up to `last`."""
        for step in range(self._judged_step + 1, last + 1):
            self._tell(self._health.add(step, self._store.metrics(step)["agents"]))
        self._judged_step = max(self._judged_step, last)

    def _tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.key not in self._told:
                log_entry("health", finding.message)
                self._watcher.judged(finding)

    def _count(self, step: int) -> None:
        agents: Mapping[str, Mapping[str, Any]] = self._store.metrics(step)["agents"]
        for agent, values in agents.items():
            self._spent[agent] = self._spent[agent].plus(values)
            self._rewards[agent] = values["reward/mean"]

    def _note(self, result: EvaluationResult) -> None:
        key = (result.step, result.benchmark, result.agent)
        self._evaluations[key] = Evaluation(*key, result.value, self._spent[result.agent])
        self._tell(self._health.add(result.step, health_values(result, self._config)))

    def _write(self) -> Progress:
        progress = Progress(
            pair=self._config.pair.name,
            method=self._config.method.name,
            seed=self._config.seed,
            step=self._step,
            num_steps=self._num_steps,
            updated_at=time.time(),
            seconds_left=self._seconds_left,
            rewards=dict(self._rewards),
            spent=dict(self._spent),
            evaluations=list(self._evaluations.values()),
            findings=list(self._health.findings),
        )
        try:
            write_json(self._store.root / PROGRESS_FILE, asdict(progress), syncs=False)
        except StoreError as error:  # if the disk is full, the step store stops the run
            _log.warning("progress file not updated: %s", error)
        return progress

    def evaluated(self, result: EvaluationResult) -> None:
        """Record an accuracy."""
        log_entry("step", str(result))
        self._note(result)
        self._write()
        self._watcher.evaluated(result)

    def ended(self, step: int) -> None:
        """Record that the training ends after this step, which may be earlier than planned."""
        self._num_steps = step
        self._write()

    def stepped(self, step: int, seconds_left: float) -> None:
        """Record a committed step and the estimated time to the last one."""
        self._step, self._seconds_left = step, seconds_left
        self._count(step)
        self._judge(step)
        progress = self._write()
        log_entry("step", f"{progress.position}: {progress.reward}")
        self._watcher.stepped(progress)
