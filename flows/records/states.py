"""The state of experiments, determined from their folders alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.records.failures import Failure, read_failure
from flows.records.files import experiments_dir
from flows.records.progress import Progress, read_progress
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json
from hacpo_core.store.lock import is_locked

CONFIG_FILE = "config.yaml"
RESULT_FILE = "result.json"
"""the result table; its presence marks an experiment as complete, unless it is corrupt"""


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """State of an experiment, its progress and its failure.

    `state` is "done", "running", "failed" or "missing"; `flows.service.experiment_state` adds what the schedule says.
    """

    state: str
    progress: Progress | None
    failure: Failure | None

    def shown(self, state: str) -> str:
        """A state for people: "interrupted" is missing, but was begun."""
        return "interrupted" if state == "missing" and self.progress is not None else state

    @property
    def reason(self) -> str:
        """One line for a table: why it is not done, or its progress."""
        if self.state == "done":
            return ""
        if self.state == "failed" and self.failure is not None:
            return self.failure.reason
        so_far = self.progress.position if self.progress is not None else ""
        if self.state == "running":
            return so_far or "starting"
        return f"interrupted at {so_far}" if so_far else "not run"


def experiment_status(root: Path) -> ExperimentStatus:
    """State of the experiment in this folder; the folder need not exist."""
    if not root.is_dir():
        return ExperimentStatus("missing", None, None)
    progress = read_progress(root)
    if _has_result(root):
        return ExperimentStatus("done", progress, None)
    if is_locked(root):
        return ExperimentStatus("running", progress, None)
    failure = read_failure(root)
    return ExperimentStatus("failed" if failure is not None else "missing", progress, failure)


def run_records(runs_dir: Path, prefix: str = "") -> list[dict[str, Any]]:
    """All runs whose ids have a beginning, newest first: state, steps, and by agent rewards, tokens and accuracies."""
    roots = [path.parent for path in experiments_dir(runs_dir).glob(f"{prefix}*/{CONFIG_FILE}")]
    records: list[dict[str, Any]] = []
    for root in sorted(roots, key=lambda root: root.stat().st_mtime, reverse=True):
        status = experiment_status(root)
        record = {"id": root.name, "state": status.shown(status.state), "step": 0, "num_steps": None, "accuracy": {}}
        if (p := status.progress) is not None:
            record |= {"pair": p.pair, "method": p.method, "seed": p.seed, "step": p.step, "num_steps": p.num_steps}
            record |= {"reward": p.rewards, "tokens": {agent: spent.tokens for agent, spent in p.spent.items()}}
            agents = dict.fromkeys(e.agent for e in p.evaluations)
            record["accuracy"] = {agent: {e.benchmark: e.value for e in p.latest(agent)} for agent in agents}
        records.append(record | {"reason": status.reason})
    return records


def _has_result(root: Path) -> bool:
    try:
        read_json(root / RESULT_FILE)
    except StoreError:  # missing or corrupt
        return False
    return True
