"""Evaluate the agents of an experiment, fully trained or not, on any benchmarks: `hacpo evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from flows.planning.compose import benchmark
from flows.planning.declarations import file_stem
from flows.planning.plans import Plan
from flows.records.mlflow_address import mark_unsent
from flows.records.progress import read_progress
from flows.records.watcher import ProgressRecorder, Watcher
from flows.runs.experiment import evaluate_agents, waited_for
from flows.runs.opening import open_experiment
from flows.runs.tracking import plan_tracking_uri, sync
from hacpo_core.config import BenchmarkConfig
from hacpo_core.config.checks import validate
from hacpo_core.config.schema import KeepBestConfig, StopConfig
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.errors import ConfigError
from hacpo_core.evaluation.results import intact_results
from hacpo_core.evaluation.run import other_question_error, question_digest
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.phases.runner import Runner
from hacpo_core.store.steps import StepStore


def with_benchmarks(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan with only these benchmarks; the experiment's own declaration of a benchmark is preferred.

    Args:
        plan: of an experiment in the runs folder.
        names: names in the experiment or in `experiments/benchmarks`, or YAML files; empty: all of the experiment.

    Raises:
        ConfigError: a benchmark is not declared, is declared twice, or its declaration is inconsistent.
    """
    own_benchmarks = plan.config.evaluate.benchmarks
    own_names = OmegaConf.create({"evaluate": {"benchmarks": {name: {} for name in own_benchmarks}}})
    benchmarks: dict[str, BenchmarkConfig] = {} if names else own_benchmarks
    for source in names:
        name = file_stem(source)
        declaration = own_benchmarks[source] if source in own_benchmarks else benchmark(source, [own_names])
        if declaration != {**benchmarks, **own_benchmarks}.get(name, declaration):
            owner = plan.id if name in own_benchmarks else "another of these files"
            raise ConfigError(
                f"benchmark {name}: {owner} declares it differently than {source}; give the file another name"
            )
        benchmarks[name] = declaration
    if not benchmarks:
        raise ConfigError(f"--benchmarks: got none, and {plan.id} declares none; name some, for example math500")
    evaluate = replace(plan.config.evaluate, during=[], final=list(benchmarks), benchmarks=dict(benchmarks))
    config = replace(plan.config, evaluate=evaluate)
    # that these benchmarks are evaluated during training is not asked of an evaluation
    checkpoint, train = replace(config.checkpoint, keep_best=KeepBestConfig()), replace(config.train, stop=StopConfig())
    validate(replace(config, checkpoint=checkpoint, train=train))
    return replace(plan, config=config)


def last_trained_step(plan: Plan) -> int:
    """The last step in which every agent was updated; 0 before training."""
    store, updates = StepStore(plan.root), {f"update.{agent}" for agent in plan.config.pair.agents}
    steps = range(store.last_step(), 0, -1)
    return next((step for step in steps if updates <= set(store.committed(step))), 0)


def run_evaluation(plan: Plan, step: int | None, runner: Runner, watcher: Watcher | None = None) -> pd.DataFrame:
    """Evaluate every agent on the plan's benchmarks; shards that are already committed are reused.

    Weights of an earlier step are restored from a checkpoint and stored rollouts.

    Args:
        plan: with the benchmarks to evaluate on.
        step: training step to evaluate after; 0: before training; None: the last one.
        runner: runs the shards.
        watcher: called with every result.

    Returns:
        rows of these evaluations, as in `read_evaluations`.

    Raises:
        ConfigError: the experiment has not reached that step, was evaluated on other problems under the same name, or
            is tracked at an address that contains a password.
        DataError: a benchmark cannot be read.
    """
    watcher = watcher or Watcher()
    is_tracked = plan_tracking_uri(plan) is not None  # fails early if it contains a password
    last = last_trained_step(plan)
    step = last if step is None else step
    if not 0 <= step <= last:
        raise ConfigError(f"--step: got {step}, but {plan.id} is trained up to step {last}; choose 0 to {last}")
    with open_experiment(plan) as (experiment, benchmarks):
        check_questions(plan, benchmarks)
        with waited_for(experiment, runner):
            evaluate_agents(experiment, step, list(benchmarks), benchmarks, runner, watcher.evaluated)
        if read_progress(plan.root) is not None:  # without training there is no progress file to update
            store, results = experiment.ledger.store, intact_results(plan.root)
            last_measured_step = next(s for s in range(last, -1, -1) if s == 0 or store.is_intact(s, "metrics"))
            # It writes the file.
            ProgressRecorder(store, plan.config, step=last_measured_step, evaluations=results, watcher=watcher)
    if is_tracked:
        mark_unsent(plan.root)
    sync(Path(plan.config.runtime.runs_dir), [plan.id])
    frame = read_evaluations(plan.root)
    return frame[(frame.step == step) & frame.benchmark.isin(list(benchmarks))].reset_index(drop=True)


def check_questions(plan: Plan, benchmarks: Mapping[str, Benchmark]) -> None:
    """Check that no evaluation of these names, after any step, had other problems or settings: a curve is of one.

    Raises:
        ConfigError: one had.
    """
    digests = {name: question_digest(plan.config, benchmark) for name, benchmark in benchmarks.items()}
    for result in intact_results(plan.root):
        if digests.get(result.benchmark, result.digest) != result.digest:
            raise other_question_error(result.step, result.benchmark)
