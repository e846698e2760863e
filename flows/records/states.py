"""The state of experiments, determined from their folders alone."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from flows.records.failures import Failure, read_failure
from flows.records.files import experiments_dir
from flows.records.progress import Progress, read_progress
from hacpo_core.config import flatten
from hacpo_core.errors import StoreError, first_line
from hacpo_core.files import read_json
from hacpo_core.store.lock import LOCK_FILE, is_locked

_log = logging.getLogger(__name__)
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
    was_begun: bool = False
    """whether a process has ever trained it, if only as far as a warm-up"""

    def shown(self, state: str) -> str:
        """A state for people: "interrupted" is missing, but was begun."""
        return "interrupted" if state == "missing" and self.was_begun else state

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
        if not self.was_begun:
            return "not run"
        return f"interrupted at {so_far or 'the start'}"


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
    was_begun = progress is not None or (root / LOCK_FILE).is_file()
    return ExperimentStatus("failed" if failure is not None else "missing", progress, failure, was_begun)


def run_records(runs_dir: Path, prefix: str = "") -> list[dict[str, Any]]:
    """Runs whose ids have a beginning, the latest work first: state, steps; by agent rewards, tokens, accuracies."""
    roots = [path.parent for path in experiments_dir(runs_dir).glob(f"{prefix}*/{CONFIG_FILE}")]
    records: list[dict[str, Any]] = []
    statuses = {root: experiment_status(root) for root in roots}
    for root, status in sorted(statuses.items(), key=lambda entry: _last_work(*entry), reverse=True):
        record = {"id": root.name, "state": status.shown(status.state), "step": 0, "num_steps": None, "accuracy": {}}
        if (p := status.progress) is not None:
            record |= {"pair": p.pair, "method": p.method, "seed": p.seed, "step": p.step, "num_steps": p.num_steps}
            record |= {"reward": p.rewards, "tokens": {agent: spent.tokens for agent, spent in p.spent.items()}}
            agents = dict.fromkeys(e.agent for e in p.evaluations)
            record["accuracy"] = {agent: {e.benchmark: e.value for e in p.latest(agent)} for agent in agents}
        records.append(record | {"reason": status.reason})
    differs = differing_fields(roots)
    return [record | {"differs": differs.get(record["id"], "")} for record in records]


def _last_work(root: Path, status: ExperimentStatus) -> float:
    return root.stat().st_mtime if status.progress is None else status.progress.updated_at


def differing_fields(roots: Iterable[Path]) -> dict[str, str]:
    """By id, the fields in which a run differs from others of its pair, method and seed, and its successor if any."""
    families: dict[tuple[str, ...], dict[Path, dict[str, Any]]] = {}
    for root in roots:
        with suppress(OSError):
            file = root / CONFIG_FILE
            config = _fields(file, file.stat().st_mtime_ns)
            names = tuple(str(config.get(name)) for name in ("pair.name", "method.name", "seed"))
            families.setdefault(names, {})[root] = config
    differs = {}
    for family in families.values():
        values = {name: {str(config.get(name)) for config in family.values()} for name in next(iter(family.values()))}
        for root, config in family.items():
            texts = [f"{name}={config[name]}" for name in config if len(values.get(name, ())) > 1]
            # Runs of the same configuration differ in contents: a model, data or a class that was changed.
            twins = [twin for twin in family if config and family[twin] == config]
            newest = max(twins, key=lambda twin: (twin / CONFIG_FILE).stat().st_mtime, default=root)
            if newest != root:
                texts.append(f"its model, data or code changed: see {newest.name}")
            differs[root.name] = ", ".join(texts)
    return differs


@lru_cache(maxsize=4096)
def _fields(file: Path, _version: int) -> dict[str, Any]:
    """A saved configuration's fields by dotted name, without those of `runtime`; none if it is corrupt."""
    try:
        fields = flatten(yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader))
        return {name: value for name, value in fields.items() if not name.startswith("runtime.")}
    except (yaml.YAMLError, AttributeError) as error:
        _log.warning("%s is corrupt: %s", file, first_line(error))
        return {}


def _has_result(root: Path) -> bool:
    try:
        read_json(root / RESULT_FILE)
    except StoreError:  # missing or corrupt
        return False
    return True
