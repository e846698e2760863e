"""One experiment in MLflow: a run, one nested run per agent, every metric value logged once."""

from __future__ import annotations

import json
import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.records.mlflow_store import MAX_POINTS, MlflowStore, Point
from hacpo_core.files import write_json

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
STEP_METRIC = "progress/step"
_PARENT = "mlflow.parentRunId"
"""MLflow's tags of a nested run, and of the text that it shows as a run's description"""


class Tracker:
    """Writes one experiment to MLflow; opening it again continues the same runs.

    Every method raises TrackingError if the store does not respond, cannot be opened or rejects data.
    """

    def __init__(
        self, uri: str, *, experiment: str, artifacts: Path, run_name: str, state_file: Path, agents: Sequence[str]
    ) -> None:
        """Open or create the runs.

        Args:
            uri, experiment, artifacts: see `MlflowStore`.
            run_name: name and tag of the parent run.
            state_file: file in the experiment's folder that stores the run ids.
            agents: names; each gets a nested run.
        """
        self.store = MlflowStore(uri, experiment=experiment, artifacts=artifacts)
        saved_state = _read_state(state_file)
        # Identifies this folder's training: the same experiment in another folder has other runs.
        training = saved_state.get("training") or secrets.token_hex(8)
        self._state_file = state_file
        write_json(state_file, {**saved_state, "training": training, "is_open": True})
        tags = {"hacpo.experiment": run_name, "hacpo.training": training}

        def opened(name: str, run_id: str | None, agent_tags: Mapping[str, str]) -> str:
            return self.store.open_run(name, {**tags, **agent_tags}, known_by="hacpo.training", run_id=run_id)

        self.run_id = opened(run_name, saved_state.get("run"), {})
        """MLflow's id of the parent run"""
        self._agents = {
            name: opened(
                f"{run_name}/{name}",
                saved_state.get("agents", {}).get(name),
                {"hacpo.agent": name, _PARENT: self.run_id},
            )
            for name in agents
        }
        self._waiting: defaultdict[str, list[Point]] = defaultdict(list)
        self._stored: dict[tuple[str, str], Mapping[int, float]] = {}
        self._state = {
            "training": training,
            "experiment": self.store.experiment_id,
            "run": self.run_id,
            "agents": self._agents,
        }
        write_json(state_file, {**self._state, "is_open": True})

    def log_setup(self, *, params: Mapping[str, Any], tags: Mapping[str, str], datasets: Mapping[str, str]) -> None:
        """Log parameters and tags on all runs, and data sets on the parent run.

        Args:
            params: name to value. Those that identify the experiment cannot have changed; of the others (paths,
                retries, checkpoints), the first attempt's value is kept.
            tags: name to value.
            datasets: see `MlflowStore.set_datasets`.
        """
        for run_id in (self.run_id, *self._agents.values()):
            self.store.set_params(run_id, params)
        self.set_tags(tags)
        self.store.set_datasets(self.run_id, datasets)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags on all runs."""
        self.store.set_tags(self.run_id, tags)
        for agent, run_id in self._agents.items():
            self.store.set_tags(run_id, {**tags, "agent": agent})

    def set_health(self, text: str) -> None:
        """Replace the tag of the parent run that says what is wrong with the training."""
        self.store.set_tags(self.run_id, {"hacpo.health": text})

    def logged_steps(self) -> set[int]:
        """Steps whose metrics are completely logged."""
        return set(self.store.history(self.run_id, STEP_METRIC))

    def stored(self, agent: str | None, name: str) -> Mapping[int, float]:
        """A metric of an agent's run (None: of the parent run) by step, as it was when it was first asked for.

        A phase that runs again gives its values another time, so that MLflow would store them a second time.
        """
        key = self.run_id if agent is None else self._agents[agent], name
        if key not in self._stored:
            self._stored[key] = self.store.history(*key)
        return self._stored[key]

    def add(self, agent: str | None, values: Mapping[str, float], *, step: int, timestamp_ms: int) -> None:
        """Add values at one step to those to be sent; the same values with the same time are stored once.

        Args:
            agent: name; None: the parent run. Add a step's values of the parent run last: its STEP_METRIC says that
                the step is complete.
            values: name to value.
            step: number of the step.
            timestamp_ms: a time that is the same each time that these values are sent.
        """
        run_id = self.run_id if agent is None else self._agents[agent]
        if len(self._waiting[run_id]) + len(values) > MAX_POINTS:
            self.flush()
        self._waiting[run_id] += [Point(name, float(value), step, timestamp_ms) for name, value in values.items()]

    def flush(self) -> None:
        """Send what was added, the parent's last."""
        for run_id in (*self._agents.values(), self.run_id):
            if self._waiting[run_id]:
                self.store.add_points(run_id, self._waiting[run_id])
        self._waiting.clear()

    def log_table(self, name: str, frame: pd.DataFrame) -> None:
        """Log a table as an artifact of the parent run; replaces one of the same name."""
        self.store.put_table(self.run_id, name, frame)

    def log_file(self, path: Path) -> None:
        """Log a file as an artifact of the parent run."""
        self.store.put_file(self.run_id, path)

    def finish(self, status: str) -> None:
        """Send what was added and close all runs with a status: "FINISHED", "FAILED" or "KILLED"."""
        self.flush()
        for run_id in (*self._agents.values(), self.run_id):
            self.store.end_run(run_id, status)
        write_json(self._state_file, {**self._state, "is_open": False})


def _read_state(path: Path) -> dict[str, Any]:
    """The state of an earlier process: the training's id, which tags its runs, and the runs' ids."""
    if not path.is_file():
        return {}
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        _log.warning("%s is corrupt; opening new MLflow runs and leaving the existing ones as they are", path)
        return {}
    return state
