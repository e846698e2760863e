"""Logs an experiment to MLflow from a background thread, so that training does not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planning.plans import Plan, data_files
from flows.records.states import CONFIG_FILE
from flows.runs.results import result_values
from hacpo_core.config import as_dict, flatten
from hacpo_core.config.addresses import STATE_FILE, tracking_uri
from hacpo_core.evaluation.results import EvaluationResult, intact_results, result_phase
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.experiment import Experiment
from hacpo_core.phases.runner import Handle, Phase, Runner
from hacpo_core.store.background import Background
from hacpo_core.versions import version_tags

if TYPE_CHECKING:  # importing MLflow takes over a second, so the thread does it
    import pandas as pd

    from hacpo_core.tracking import Tracker

_SYMBOLS = {
    "α": "method.objective.cross_exponent",
    "δ": "method.objective.cross_floor",
    "δ_step": "method.objective.cross_step",
    "K": "method.estimate.window",
}
"""the paper's symbols for fields of some methods"""
SAMPLED_ROWS = 64
"""number of logged responses of the last step, over all agents"""


def store_of(plan: Plan) -> str | None:
    """Address of the MLflow store, None if tracking is off. Call it before models are loaded, to fail early.

    Raises:
        ConfigError: the address contains a password, which error messages would show.
    """
    config = plan.config
    return tracking_uri(config.tracking.uri, Path(config.runtime.runs_dir)) if config.tracking.enabled else None


class ExperimentTracking:
    """The MLflow runs of an experiment; does nothing if tracking is off.

    Methods return at once; a thread does the work in the same order. Its errors are raised by the next method call, by
    the next phase of a `watched` runner, or by `finish`.
    """

    def __init__(self, plan: Plan, experiment: Experiment) -> None:
        """Start to open the runs; runs that an earlier process left open are reused."""
        self._experiment = experiment
        self._uri = store_of(plan)
        self._thread = Background("mlflow")
        self._tracker: Tracker | None = None
        self._logged: set[int] = set()
        self._is_sending = False
        if self._uri is not None:
            self._thread.do(lambda: self._open(plan))

    @property
    def ids(self) -> dict[str, str | None]:
        """MLflow's ids of the parent run and its experiment; available after `finish`."""
        tracker = self._tracker
        return {
            "mlflow_run": tracker.run_id if tracker else None,
            "mlflow_experiment": tracker.experiment_id if tracker else None,
        }

    def log_step(self, step: int) -> None:
        """Log all metrics of a committed step, unless they were logged before."""
        self._do(lambda tracker: self._log_step(tracker, step))

    def log_results(self, results: Iterable[EvaluationResult]) -> None:
        """Log evaluations as metrics, with the time of their commit as timestamp."""
        self._do(lambda tracker: self._log_results(tracker, results))

    def log_evaluations(self) -> None:
        """Log every evaluation so far as metrics, as a table and as a figure; repeating this changes nothing."""
        self._do(self._log_evaluations)

    def log_result(self, table: pd.DataFrame) -> None:
        """Log the result table, some responses of the last step, and the training curves."""
        self._do(lambda tracker: self._log_result(tracker, table))

    def watched(self, runner: Runner) -> Runner:
        """A runner that raises before the next phase if logging has failed."""
        return _Watched(runner, self._thread)

    def finish(self, status: str, *, raises: bool = True) -> None:
        """Wait for pending work, and close the runs.

        Args:
            status: "FINISHED", "FAILED" or "KILLED".
            raises: whether to raise an error of the thread; if False, log it, because another error is being raised.
        """
        self._thread.do(lambda: None if self._tracker is None else self._tracker.finish(status), checks=False)
        self._thread.wait(raises=raises)

    def _do(self, work: Callable[[Tracker], None]) -> None:
        if self._uri is not None:
            self._thread.do(lambda: self._try(work))

    # The methods below run in the thread. After a failure they do nothing: each call to a dead server takes minutes.

    def _try(self, work: Callable[[Tracker], None]) -> None:
        if self._tracker is None or not self._is_sending:
            return
        self._is_sending = False
        work(self._tracker)
        self._is_sending = True

    def _open(self, plan: Plan) -> None:
        from hacpo_core.tracking import Tracker

        assert self._uri is not None, "only called if tracking is on"
        config, experiment = plan.config, self._experiment
        tracker = Tracker(
            self._uri,
            experiment=config.tracking.experiment,
            artifacts=Path(config.runtime.runs_dir) / "mlartifacts",
            run_name=plan.id,
            state_file=plan.root / STATE_FILE,
            agents=experiment.agents,
        )
        self._tracker = tracker
        method, fields = experiment.method, flatten(as_dict(config))
        params = {
            "model_pair": " + ".join(experiment.agents),
            "pair": config.pair.name,
            "method": method.name,
            **{symbol: fields[name] for symbol, name in _SYMBOLS.items() if name in fields},
            **fields,
        }
        if "δ" in params:  # the field is the floor 1 - δ
            params["δ"] = round(1.0 - params["δ"], 12)
        contexts = [
            *(f"train {name}" for name in config.data.train),
            *(f"benchmark {name}" for name in config.evaluate.benchmarks),
        ]
        files = {context: f"{path}@{digest}" for context, (path, digest) in data_files(config).items()}
        datasets = {context: files.get(context, "arithmetic@embedded") for context in contexts}
        tags = {"pair": config.pair.name, "method": method.name, "seed": str(config.seed), **version_tags()}
        tracker.log_setup(params=params, tags=tags, datasets=datasets)
        tracker.log_file(plan.root / CONFIG_FILE)
        self._logged = tracker.logged_steps()
        self._is_sending = True

    def _log_step(self, tracker: Tracker, step: int) -> None:
        if step not in self._logged:
            tracker.log_step(step, self._experiment.ledger.store.metrics(step))

    def _log_results(self, tracker: Tracker, results: Iterable[EvaluationResult]) -> None:
        for result in results:
            phase = result_phase(result.benchmark, result.agent)
            timestamp_ms = self._experiment.ledger.store.committed_at_ms(result.step, phase)
            tracker.log_agent(result.agent, result_values(result), step=result.step, timestamp_ms=timestamp_ms)

    def _log_evaluations(self, tracker: Tracker) -> None:
        from flows.runs.figures import benchmarks_figure

        root = self._experiment.ledger.store.root
        self._log_results(tracker, intact_results(root))
        tracker.log_table("evaluations.json", read_evaluations(root))
        figure = benchmarks_figure(root)
        if figure is not None:
            tracker.log_figure("benchmarks.svg", figure)

    def _log_result(self, tracker: Tracker, table: pd.DataFrame) -> None:
        from flows.runs.figures import curves_figure

        tracker.log_table("result.json", table)
        tracker.log_table(
            "rollouts.json", _sample_of_rollouts(self._experiment, self._experiment.config.train.num_steps)
        )
        for name, figure in curves_figure(self._experiment).items():
            tracker.log_figure(f"{name}.svg", figure)


class _Watched:
    """A runner that first checks whether the background thread has failed."""

    def __init__(self, runner: Runner, thread: Background) -> None:
        self._runner, self._thread = runner, thread

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """See `Runner`; raises an error of the thread."""
        self._thread.check()
        return self._runner.start(phase, work, after=after)

    def wait(self) -> None:
        """See `Runner`."""
        self._runner.wait()


def _sample_of_rollouts(experiment: Experiment, step: int) -> pd.DataFrame:
    """The first responses of each agent in a step, with their verdicts."""
    import pandas as pd

    frames = []
    for agent in experiment.agents:
        responses = experiment.ledger.verdicts(step, agent).responses
        responses = responses.take(range(min(len(responses), SAMPLED_ROWS // len(experiment.agents))))
        assert responses.verdicts is not None, "a complete step is verified"
        columns = {"agent": agent, "problem": responses.problem_id, "text": responses.text}
        verdicts = {"status": responses.verdicts.status, "extracted": responses.verdicts.extracted}
        frames.append(pd.DataFrame(columns | verdicts))
    return pd.concat(frames, ignore_index=True)
