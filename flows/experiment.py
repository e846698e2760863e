"""One experiment from its first to its last step, under any runner."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from flows.build import open_experiment
from flows.display import Watcher
from flows.failures import failures_recorded
from flows.plans import Plan, data_files
from flows.progress import ProgressFile
from flows.results import ExperimentResult, read_final, result_table, result_values
from flows.states import CONFIG_FILE, RESULT_FILE
from hacpo_core.algorithm import Experiment, Handle, Runner, StartedStep, finish_step, train_step
from hacpo_core.config import ExperimentConfig, as_dict, flatten
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.errors import ServerError
from hacpo_core.evaluation.results import EvaluationResult, result_phase, results
from hacpo_core.evaluation.run import finish_evaluation, start_evaluation
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.side_by_side import BrokenOffError, SideBySideRunner
from hacpo_core.store import write_json
from hacpo_core.tracking import STATE_FILE, Tracker, version_tags
from hacpo_core.tracking_uri import tracking_uri

_log = logging.getLogger(__name__)


def run_experiment(plan: Plan, runner: Runner, watcher: Watcher) -> ExperimentResult:
    """Train to the end, from wherever the store stands; a complete experiment is returned as it is.

    Raises:
        HacpoError: with its remedy; everything committed so far stays, and `hacpo resume` goes on from it.
    """
    done = read_final(plan)
    if done is not None:
        return done
    store_of(plan)
    progress = {
        name: lambda step, steps, loss, name=name: watcher.warmed_up(name, step, steps, loss)
        for name in plan.config.pair.agents
    }
    with failures_recorded(plan.root), open_experiment(plan, progress=progress) as (x, benchmarks):
        at = x.opened_at.step if x.opened_at is not None else 0
        watcher = ProgressFile(x.ledger.store, plan.config, step=at, evaluations=results(plan.root), inner=watcher)
        tracker = open_tracker(plan, x)
        try:
            with side_by_side(x, runner) as runner_of_agents:
                _train(plan, x, benchmarks, runner_of_agents, watcher, tracker)
            return _finish(plan, x, tracker)
        except BaseException as error:
            if tracker is not None:
                tracker.finish("KILLED" if isinstance(error, (KeyboardInterrupt, ServerError)) else "FAILED")
            raise


@contextmanager
def side_by_side(x: Experiment, runner: Runner) -> Iterator[Runner]:
    """The runner; where agents can work at the same time, one that hands it their phases side by side.

    When a phase fails, the others that have begun end and commit what they make; Ctrl-C breaks them off.
    """
    if not x.placement.is_side_by_side:
        yield runner
        return
    together = SideBySideRunner(runner)
    try:
        yield together
    except BrokenOffError as consequence:
        raise together.failure or consequence from None
    except KeyboardInterrupt:
        x.placement.break_off()
        raise
    finally:
        together.wait()


def _train(
    plan: Plan,
    x: Experiment,
    benchmarks: Mapping[str, Benchmark],
    runner: Runner,
    watcher: Watcher,
    tracker: Tracker | None,
) -> None:
    config = plan.config
    num_steps, version = config.train.num_steps, x.opened_at.step if x.opened_at is not None else 0
    logged = tracker.logged_steps() if tracker is not None else set()
    if version == 0:
        names = [*config.evaluate.during, *config.evaluate.final]
        found = evaluate_agents(x, 0, names, benchmarks, runner, watcher)
        if tracker is not None:
            log_results(x, tracker, found)
    for step in range(1, version + 1):
        if tracker is not None and step not in logged:
            tracker.log_step(step, _metrics(x, step))
    begun_at = time.monotonic()

    def complete(started: StartedStep) -> None:
        finish_step(x, started)
        metrics = _metrics(x, started.step)
        if tracker is not None and started.step not in logged:
            tracker.log_step(started.step, metrics)
        seconds_left = (time.monotonic() - begun_at) / (started.step - version) * (num_steps - started.step)
        watcher.stepped(started.step, num_steps, metrics, seconds_left)

    is_pipelined = x.placement.is_side_by_side and config.placement.pipelined
    before: StartedStep | None = None
    for step in range(version + 1, num_steps + 1):
        started = train_step(x, step, runner, before=before)
        if before is not None:
            complete(before)
        before = started
        names = _benchmarks_after(config, step)
        saves = step == num_steps or step % config.checkpoint.every == 0
        if is_pipelined and not names and not saves:
            continue
        complete(started)
        before = None
        found = evaluate_agents(x, step, names, benchmarks, runner, watcher)
        if tracker is not None:
            log_results(x, tracker, found)
        if saves:
            x.checkpoint(step)


def _benchmarks_after(config: ExperimentConfig, step: int) -> list[str]:
    """Benchmarks that the agents are evaluated on after a step."""
    is_last, every = step == config.train.num_steps, config.evaluate.every
    names = [*config.evaluate.during] if every and step % every == 0 else []
    return [*names, *config.evaluate.final] if is_last else names


def _metrics(x: Experiment, step: int) -> dict[str, Any]:
    metrics: dict[str, Any] = x.ledger.store.read_value(step, "metrics", "metrics.json")
    return metrics


def evaluate_agents(
    x: Experiment,
    step: int,
    names: Sequence[str],
    benchmarks: Mapping[str, Benchmark],
    runner: Runner,
    watcher: Watcher,
) -> list[EvaluationResult]:
    """Evaluate every agent, as it is after `step`, on the named benchmarks; a name that comes twice counts once."""
    started: dict[tuple[str, str], Handle | None] = {}
    busy: dict[str, Handle] = {}  # an agent's benchmarks come one after the other
    for name, k in itertools.product(dict.fromkeys(names), x.names):
        after = [busy[k]] if k in busy else []
        last = started[name, k] = start_evaluation(x, step, k, benchmarks[name], runner, after=after)
        if last is not None:
            busy[k] = last
    found = []
    for (name, k), last in started.items():
        result = finish_evaluation(x, step, k, benchmarks[name], last)
        watcher.evaluated(step, name, k, result.value)
        found.append(result)
    return found


def store_of(plan: Plan) -> str | None:
    """Address of the experiment's runs in MLflow, None where tracking is off; to be refused before models are loaded.

    Raises:
        ConfigError: it holds a password that errors would show.
    """
    config = plan.config
    return tracking_uri(config.tracking.uri, Path(config.runtime.runs_dir)) if config.tracking.enabled else None


def open_tracker(plan: Plan, x: Experiment) -> Tracker | None:
    """The experiment's runs in MLflow, with its parameters; None where tracking is off."""
    config, uri = plan.config, store_of(plan)
    if uri is None:
        return None
    runs_dir = Path(config.runtime.runs_dir)
    tracker = Tracker(
        uri,
        experiment=config.tracking.experiment,
        artifacts=runs_dir / "mlartifacts",
        run_name=plan.id,
        state_file=plan.root / STATE_FILE,
        agents=x.names,
    )
    method = x.method
    params = {
        "model_pair": " + ".join(x.names),
        "pair": config.pair.name,
        "method": method.name,
        "α": method.cross_exponent,
        "δ": round(1.0 - method.cross_floor, 12),
        "δ_step": method.cross_step,
        "K": method.capability_window,
        **{name: value for name, value in flatten(as_dict(config)).items() if name not in ("pair", "method")},
    }
    contexts = ["train", *(f"benchmark {name}" for name in config.evaluate.benchmarks)]
    files = {context: f"{path}@{digest}" for context, (path, digest) in data_files(config).items()}
    datasets = {context: files.get(context, "arithmetic@embedded") for context in contexts}
    tags = {"pair": config.pair.name, "method": method.name, "seed": str(config.seed), **version_tags()}
    tracker.log_setup(params=params, tags=tags, datasets=datasets)
    tracker.log_file(plan.root / CONFIG_FILE)
    return tracker


def _finish(plan: Plan, x: Experiment, tracker: Tracker | None) -> ExperimentResult:
    num_steps = plan.config.train.num_steps
    from flows.figures import curves_figure

    table = result_table(x)
    digests = {k: x.ledger.update(num_steps, k).digest for k in x.names}
    if tracker is not None:
        log_evaluations(x, tracker)
        tracker.log_table("result.json", table)
        tracker.log_table("rollouts.json", _sample_of_rollouts(x, num_steps))
        for name, figure in curves_figure(x).items():
            tracker.log_figure(f"{name}.png", figure)
        tracker.finish("FINISHED")  # before the result: killed in between, a run that is complete would stay open
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    value: dict[str, Any] = {
        "id": plan.id,
        "table": rows,
        "digests": digests,
        "versions": version_tags(),
        "mlflow_run": tracker.run_id if tracker else None,
        "mlflow_experiment": tracker.experiment_id if tracker else None,
    }
    write_json(plan.root / RESULT_FILE, value)
    return ExperimentResult(root=plan.root, is_reused=False, **value)


def log_results(x: Experiment, tracker: Tracker, found: Iterable[EvaluationResult]) -> None:
    """Evaluations as metrics, with the timestamp that each will always have."""
    for result in found:
        timestamp_ms = x.ledger.store.committed_at_ms(result.step, result_phase(result.benchmark, result.agent))
        tracker.log_agent(result.agent, result_values(result), step=result.step, timestamp_ms=timestamp_ms)


def log_evaluations(x: Experiment, tracker: Tracker) -> None:
    """Every evaluation so far as metrics, as one table and as a figure; logging the same again changes nothing."""
    from flows.figures import benchmarks_figure

    log_results(x, tracker, results(x.ledger.store.root))
    tracker.log_table("evaluations.json", read_evaluations(x.ledger.store.root))
    figure = benchmarks_figure(x.ledger.store.root)
    if figure is not None:
        tracker.log_figure("benchmarks.png", figure)


def _sample_of_rollouts(x: Experiment, step: int, *, num_rows: int = 64) -> pd.DataFrame:
    """The first responses of every agent in a step, with verdict and advantage for their own learner."""
    frames = []
    for k in x.names:
        rollouts, verdicts = x.ledger.rollouts(step, k).rollouts, x.ledger.verdicts(step, k).verdicts
        rows = [
            {"agent": k, "problem": r.problem_id, "text": r.text, "status": v.status, "extracted": v.extracted}
            for r, v in zip(rollouts, verdicts, strict=True)
        ]
        frames.append(pd.DataFrame(rows[: num_rows // len(x.names)]))
    return pd.concat(frames, ignore_index=True)
