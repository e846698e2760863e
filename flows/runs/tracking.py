"""What an experiment writes to MLflow, and the thread that writes it: training waits for neither imports nor store."""

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

if TYPE_CHECKING:  # the thread imports MLflow: over a second that a first sampling need not wait for
    import pandas as pd

    from hacpo_core.tracking import Tracker

_SYMBOLS = {
    "α": "method.objective.cross_exponent",
    "δ": "method.objective.cross_floor",
    "δ_step": "method.objective.cross_step",
    "K": "method.estimate.window",
}
"""the paper's symbols of fields that methods may have"""
SAMPLED_ROWS = 64
"""responses of the last step that are shown, of all agents together"""


def store_of(plan: Plan) -> str | None:
    """Address of the experiment's runs in MLflow, None where tracking is off; to be refused before models are loaded.

    Raises:
        ConfigError: it holds a password that errors would show.
    """
    config = plan.config
    return tracking_uri(config.tracking.uri, Path(config.runtime.runs_dir)) if config.tracking.enabled else None


class ExperimentTracking:
    """The experiment's runs in MLflow; where tracking is off, nothing happens.

    Methods return at once, and a thread does what they ask for, in their order. What fails there, the next method
    raises, or the next phase of a runner that is `watched`; `finish` at the latest.
    """

    def __init__(self, plan: Plan, experiment: Experiment) -> None:
        """Begin to open the runs, or those that an earlier process left open."""
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
        """MLflow's ids of the parent run and of the experiment that holds it; known when the runs are closed."""
        tracker = self._tracker
        return {
            "mlflow_run": tracker.run_id if tracker else None,
            "mlflow_experiment": tracker.experiment_id if tracker else None,
        }

    def log_step(self, step: int) -> None:
        """All metrics of a step that the store holds, unless they have arrived before."""
        self._do(lambda tracker: self._log_step(tracker, step))

    def log_results(self, found: Iterable[EvaluationResult]) -> None:
        """Evaluations as metrics, with the timestamp that each will always have."""
        self._do(lambda tracker: self._log_results(tracker, found))

    def log_evaluations(self) -> None:
        """Every evaluation so far as metrics, as one table and as a figure; logging the same again changes nothing."""
        self._do(self._log_evaluations)

    def log_result(self, table: pd.DataFrame) -> None:
        """The result's table, a sample of the last step's responses, and the curves."""
        self._do(lambda tracker: self._log_result(tracker, table))

    def watched(self, runner: Runner) -> Runner:
        """The runner; where something has failed here, the next phase does not begin."""
        return _Watched(runner, self._thread)

    def finish(self, status: str, *, raises: bool = True) -> None:
        """Wait for all that was asked for, and close the runs.

        Args:
            status: "FINISHED", "FAILED" or "KILLED".
            raises: what failed; otherwise it is logged, since another error is under way.
        """
        self._thread.do(lambda: None if self._tracker is None else self._tracker.finish(status), checks=False)
        self._thread.wait(raises=raises)

    def _do(self, work: Callable[[Tracker], None]) -> None:
        if self._uri is not None:
            self._thread.do(lambda: self._try(work))

    # What follows runs in the thread. After a failure nothing more is tried: a silent server takes minutes each time.

    def _try(self, work: Callable[[Tracker], None]) -> None:
        if self._tracker is None or not self._is_sending:
            return
        self._is_sending = False
        work(self._tracker)
        self._is_sending = True

    def _open(self, plan: Plan) -> None:
        from hacpo_core.tracking import Tracker

        assert self._uri is not None, "nothing is done where tracking is off"
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
        if "δ" in params:  # the field is the floor
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

    def _log_results(self, tracker: Tracker, found: Iterable[EvaluationResult]) -> None:
        for result in found:
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
    """A runner that first looks whether work in the background has failed."""

    def __init__(self, runner: Runner, thread: Background) -> None:
        self._runner, self._thread = runner, thread

    def start(self, phase: Phase, work: Callable[[], None], *, after: Sequence[Handle] = ()) -> Handle:
        """See `Runner`; raises what failed."""
        self._thread.check()
        return self._runner.start(phase, work, after=after)

    def wait(self) -> None:
        """See `Runner`."""
        self._runner.wait()


def _sample_of_rollouts(experiment: Experiment, step: int) -> pd.DataFrame:
    """The first responses of every agent in a step, with their verdicts."""
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
