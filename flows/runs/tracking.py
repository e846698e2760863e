"""Keeps MLflow's copy of an experiment up to date, from the experiment's folder.

The folder is the record: steps and evaluations are committed there with a fixed time, so they can be sent at any later
time, and once. A thread sends what is new while the experiment trains. If the store is away, training goes on; what is
unsent is sent by the next attempt, by the next command that trains or evaluates the experiment, or by the reconciler,
which runs this module.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planning.plans import Plan, find_plan
from flows.process import configure_process
from flows.records.mlflow_address import STATE_FILE, tracking_uri
from flows.records.progress import read_progress
from flows.records.states import CONFIG_FILE, experiment_status
from flows.records.unsent import mark_unsent, unsent_experiments
from flows.runs.mlflow_labels import datasets, parameters, tags
from flows.runs.results import read_final, result_values
from flows.service.processes import end_with_parent
from hacpo_core.errors import HacpoError, first_line
from hacpo_core.evaluation.best import best_texts
from hacpo_core.evaluation.results import EvaluationResult, read_result
from hacpo_core.evaluation.stopping import last_step
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.store.steps import StepStore

if TYPE_CHECKING:  # importing pandas and MLflow takes over a second, so the thread does it
    import pandas as pd

    from flows.records.tracker import Tracker

_log = logging.getLogger(__name__)
SAMPLED_ROWS = 64
"""number of logged responses of the last step, over all agents"""
SEND_EVERY_S, RETRY_EVERY_S = 2.0, 30.0
"""time between two calls, because a call itself is expensive; and after one that failed"""
FINISH_LIMIT_S, LATE_LIMIT_S = 60.0, 900.0
"""longest time that the end of an experiment waits for the store, and that a process waits that only sends"""


def plan_tracking_uri(plan: Plan) -> str | None:
    """Address of the MLflow store, None if tracking is off. Call it before models are loaded, to fail early.

    Raises:
        ConfigError: the address contains a password, which error messages would show.
    """
    config = plan.config
    return tracking_uri(config.tracking.uri, Path(config.runtime.runs_dir)) if config.tracking.enabled else None


class ExperimentTracking:
    """Sends an experiment to MLflow from a thread; does nothing if tracking is off. No error of the store is raised."""

    def __init__(self, plan: Plan) -> None:
        """Start to open the runs; runs that an earlier process left open are reused."""
        self._plan, self._uri = plan, plan_tracking_uri(plan)
        self._copy: _MlflowCopy | None = None
        self._has_news, self._has_ended = threading.Event(), threading.Event()
        self._end: tuple[str, pd.DataFrame | None] | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        if self._uri is not None:
            mark_unsent(plan.root)
            self._has_news.set()
            self._thread.start()

    def send_soon(self) -> None:
        """Have what was committed sent; returns at once."""
        self._has_news.set()

    def finish(self, status: str, table: pd.DataFrame | None = None, *, limit_s: float = FINISH_LIMIT_S) -> None:
        """Send everything and close the runs, or say what could not be sent.

        Args:
            status: "FINISHED", "FAILED" or "KILLED".
            table: the result table of a complete experiment.
            limit_s: longest time to wait.
        """
        if self._uri is None:
            return
        self._end = (status, table)
        self._has_ended.set()
        self._has_news.set()
        self._thread.join(limit_s)
        error = f"no answer within {limit_s:.0f} s" if self._thread.is_alive() else self._error
        if error:
            _log.warning("%s: not all was sent to MLflow (%s); it is sent later, once", self._plan.id, error)

    @property
    def is_behind(self) -> bool:
        """Whether the last attempt failed or is not over."""
        return self._uri is not None and (self._thread.is_alive() or bool(self._error))

    def _run(self) -> None:
        while True:
            self._has_news.wait()
            self._has_news.clear()
            end = self._end
            is_sent = self._send(*(end or (None, None)))
            if end is not None:
                return
            if not is_sent:
                self._has_news.set()
            self._has_ended.wait(SEND_EVERY_S if is_sent else RETRY_EVERY_S)

    def _send(self, status: str | None, table: pd.DataFrame | None) -> bool:
        assert self._uri is not None, "the thread runs only if tracking is on"
        try:
            if self._copy is None:
                self._copy = _MlflowCopy(self._plan, self._uri)
            self._copy.send(status, table)
        except Exception as error:  # noqa: BLE001  no error of the store may end a training
            self._copy = None
            message = first_line(error) if isinstance(error, HacpoError) else f"{type(error).__name__}: {error}"
            if message != self._error:
                _log.warning("%s: MLflow is tried again: %s", self._plan.id, message)
            self._error = message
            return False
        self._error = ""
        return True


class _MlflowCopy:
    """An experiment's runs in MLflow, and what of its folder they hold."""

    def __init__(self, plan: Plan, uri: str) -> None:
        from flows.records.tracker import Tracker

        config = plan.config
        self._plan, self._store = plan, StepStore(plan.root)
        self._tracker = Tracker(
            uri,
            experiment=config.tracking.experiment,
            artifacts=Path(config.runtime.runs_dir) / "mlartifacts",
            run_name=plan.id,
            state_file=plan.root / STATE_FILE,
            agents=tuple(config.pair.agents),
        )
        self._tracker.log_setup(params=parameters(config), tags=tags(plan), datasets=datasets(config))
        self._tracker.log_file(plan.root / CONFIG_FILE)
        accuracies = [f"evaluate/{benchmark}_accuracy" for benchmark in config.evaluate.final]
        self._tracker.store.add_columns(params=("method", "seed"), tags=("pair",), metrics=accuracies)
        self._health: str | None = None
        self._logged = self._tracker.logged_steps()
        self._next_step = 1
        self._sent_evaluations: set[tuple[int, str]] = set()
        self._evaluated_from = 0

    def send(self, status: str | None, table: pd.DataFrame | None) -> None:
        """Send what is new; with a status, also tables, and close the runs."""
        step = self._next_step
        while step in self._logged or self._store.is_intact(step, "metrics"):
            if step not in self._logged:
                metrics = self._store.metrics(step)
                for agent, values in metrics["agents"].items():
                    if step not in self._tracker.stored(agent, next(iter(values))):  # sent before the step was lost
                        self._tracker.add(agent, values, step=step, timestamp_ms=int(metrics["timestamp_ms"]))
                self._tracker.add(None, metrics["run"], step=step, timestamp_ms=int(metrics["timestamp_ms"]))
            step += 1
        self._next_step = step
        self._send_evaluations(self._store.last_step())
        self._tracker.flush()
        self._send_health()
        if status is not None:
            self._tracker.set_tags(tags(self._plan))  # a grid may have taken the experiment up meanwhile
            best = best_texts(self._plan.root, self._plan.config)
            if best:
                best_note = "; ".join(f"step {step}: {text}" for step, text in sorted(best.items()))
                self._tracker.store.set_tags(self._tracker.run_id, {"hacpo.best": best_note})
            _log_artifacts(self._tracker, self._plan, table)
            self._tracker.finish(status)

    def _send_health(self) -> None:
        progress = read_progress(self._plan.root)
        if progress is not None:
            health = (
                "; ".join(f"{finding.rule} ({finding.agent})" for finding in progress.open_findings) or "no finding"
            )
            if health != self._health:
                self._tracker.set_health(health)
                self._health = health

    def _send_evaluations(self, last: int) -> None:
        """Each agent's figures, and the mean over the agents on the parent run once all are evaluated."""
        for step in range(self._evaluated_from, last + 1):
            by_benchmark: defaultdict[str, list[EvaluationResult]] = defaultdict(list)
            for phase in self._store.committed(step):
                if phase.startswith("evaluate.") and self._store.is_intact(step, phase):
                    result = read_result(self._store, step, phase)
                    by_benchmark[result.benchmark].append(result)
                    if (step, phase) not in self._sent_evaluations:
                        time_ms = self._store.committed_at_ms(step, phase)
                        self._add_evaluation(result.agent, result_values(result), step, time_ms)
                        self._sent_evaluations.add((step, phase))
            for benchmark, results in by_benchmark.items():
                if (
                    len(results) == len(self._plan.config.pair.agents)
                    and (step, benchmark) not in self._sent_evaluations
                ):
                    mean = sum(result.value for result in results) / len(results)
                    time_ms = max(self._store.committed_at_ms(step, f"evaluate.{benchmark}.{r.agent}") for r in results)
                    self._add_evaluation(None, {f"evaluate/{benchmark}_accuracy": mean}, step, time_ms)
                    self._sent_evaluations.add((step, benchmark))
        self._evaluated_from = last

    def _add_evaluation(self, agent: str | None, values: Mapping[str, float], step: int, time_ms: int) -> None:
        """Add what MLflow does not hold: an evaluation may have been made again, with the same result or not."""
        new = {name: value for name, value in values.items() if self._tracker.stored(agent, name).get(step) != value}
        self._tracker.add(agent, new, step=step, timestamp_ms=time_ms)


def _log_artifacts(tracker: Tracker, plan: Plan, table: pd.DataFrame | None) -> None:
    tracker.log_table("evaluations.json", read_evaluations(plan.root))
    if table is not None:
        tracker.log_table("result.json", table)
        tracker.log_table("rollouts.json", _sample_of_rollouts(plan, last_step(plan.root, plan.config)))


def _sample_of_rollouts(plan: Plan, step: int) -> pd.DataFrame:
    """The first responses of each agent in a step, with their verdicts."""
    import pandas as pd

    from hacpo_core.store.ledger import Ledger

    agents = tuple(plan.config.pair.agents)
    ledger = Ledger(StepStore(plan.root), agents)
    frames = []
    for agent in agents:
        responses = ledger.verdicts(step, agent).value
        responses = responses.take(range(min(len(responses), SAMPLED_ROWS // len(agents))))
        assert responses.verdicts is not None, "a complete step is verified"
        columns = {"agent": agent, "problem": responses.problem_id, "text": responses.text}
        verdicts = {"status": responses.verdicts.status, "extracted": responses.verdicts.extracted}
        frames.append(pd.DataFrame(columns | verdicts))
    return pd.concat(frames, ignore_index=True)


def send_late(plan: Plan) -> bool:
    """Send what earlier processes did not; False, and a warning, if the store is still away."""
    import pandas as pd

    final = read_final(plan)
    has_failed = experiment_status(plan.root).state == "failed"
    status = "FINISHED" if final is not None else "FAILED" if has_failed else "KILLED"
    tracking = ExperimentTracking(plan)
    tracking.finish(status, pd.DataFrame(final.table) if final is not None else None, limit_s=LATE_LIMIT_S)
    return not tracking.is_behind


def main() -> None:
    """Send every experiment of a runs folder that no process trains and that is not completely in MLflow."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs-dir", type=Path, required=True)
    runs_dir = parser.parse_args().runs_dir
    configure_process()
    end_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    away: set[str] = set()
    for root in unsent_experiments(runs_dir):
        try:
            plan = find_plan(runs_dir, root.name)
            uri = plan_tracking_uri(plan) or ""
            if uri not in away and not send_late(plan):
                away.add(uri)  # each call to a silent store takes a while
        except HacpoError as error:  # for example an experiment of another version of hacpo
            _log.warning("%s: not sent to MLflow: %s", root.name, error)


if __name__ == "__main__":
    main()
