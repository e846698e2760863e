"""Train one experiment from its first to its last step, with any runner."""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from flows.planning.plans import Plan, save_plan
from flows.records.failures import failures_recorded
from flows.records.runlog import log_entry, log_start, logged
from flows.records.states import CONFIG_FILE, RESULT_FILE
from flows.records.versions import version_tags
from flows.records.watcher import ProgressRecorder, Watcher
from flows.runs.opening import open_experiment
from flows.runs.results import ExperimentResult, read_final, result_table
from flows.runs.tracking import Tracking, plan_tracking_uri
from hacpo_core.algorithm import train_step
from hacpo_core.config.counts import benchmarks_after, keeps_optimizer
from hacpo_core.data.benchmarks import Benchmark
from hacpo_core.errors import ServerError
from hacpo_core.evaluation.best import best_steps
from hacpo_core.evaluation.results import EvaluationResult, intact_results, result_phase
from hacpo_core.evaluation.run import Answers, finish_evaluation, start_evaluation
from hacpo_core.evaluation.stopping import last_step, why_ended
from hacpo_core.experiment import Experiment
from hacpo_core.files import write_json
from hacpo_core.phases.checkpoint import checkpoint
from hacpo_core.phases.runner import Handle, Runner
from hacpo_core.placement.checkpoints import drop_optimizers
from hacpo_core.store.lock import ExperimentLock


def run_experiment(
    plan: Plan, runner: Runner, watcher: Watcher | None = None, *, has_lock: bool = False
) -> ExperimentResult:
    """Train to the end, continuing from the last committed phase; a complete experiment is returned unchanged.

    Args:
        plan: what to train.
        runner: runs the phases.
        watcher: is told of progress.
        has_lock: whether the caller holds the experiment's lock.

    Raises:
        LockedError: another process trains it; nothing of its folder is changed.
        HacpoError: with a remedy; committed phases are kept, and `hacpo resume` continues from them.
    """
    watcher = watcher or Watcher()
    final_result = read_final(plan.root)
    if final_result is not None:
        return final_result
    plan_tracking_uri(plan)  # fails here, before models are loaded, if it contains a password
    if not (plan.root / CONFIG_FILE).is_file():
        save_plan(plan)  # needed to find and resume the experiment
    warm_ups = {name: partial(watcher.warmed_up, name) for name in plan.config.pair.agents}
    with (
        nullcontext() if has_lock else ExperimentLock(plan.root),  # first: log and failure are those of the holder
        logged(plan.root),
        failures_recorded(plan.root),
        open_experiment(plan, progress=warm_ups, has_lock=True) as (experiment, benchmarks),
    ):
        log_start(experiment.first_version)
        store, past = experiment.ledger.store, intact_results(plan.root)
        progress = ProgressRecorder(
            store, plan.config, step=experiment.first_version, evaluations=past, watcher=watcher
        )
        tracking = Tracking(plan)
        try:
            with waited_for(experiment, runner):
                _train(plan, experiment, benchmarks, runner, progress, tracking)
            return _finish(plan, experiment, tracking)
        except BaseException as error:
            has_failed = isinstance(error, Exception) and not isinstance(error, ServerError)  # not Ctrl-C, nor SIGTERM
            tracking.finish("FAILED" if has_failed else "KILLED")
            raise


@contextmanager
def waited_for(experiment: Experiment, runner: Runner) -> Iterator[None]:
    """Wait at the end of the block for everything that the runner has started.

    If a phase fails, phases in progress finish and are committed; Ctrl-C and SIGTERM interrupt them.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            experiment.placement.break_off()
        raise
    finally:
        runner.wait()


def _train(
    plan: Plan,
    experiment: Experiment,
    benchmarks: Mapping[str, Benchmark],
    runner: Runner,
    progress: ProgressRecorder,
    tracking: Tracking,
) -> None:
    config = plan.config
    version, last = experiment.first_version, last_step(plan.root, config)
    if version == 0:
        evaluate_agents(experiment, 0, benchmarks_after(config, 0), benchmarks, runner, progress.evaluated)
        tracking.send_soon()
    begun_at = time.monotonic()

    for step in range(version + 1, config.train.num_steps + 1):
        if step > last:
            break
        train_step(experiment, step, runner)
        tracking.send_soon()
        seconds_left = (time.monotonic() - begun_at) / (step - version) * (config.train.num_steps - step)
        progress.stepped(step, seconds_left)
        names = benchmarks_after(config, step)
        evaluate_agents(experiment, step, names, benchmarks, runner, progress.evaluated)
        last = last_step(plan.root, config) if names else last
        tracking.send_soon()
        best = best_steps(plan.root, config)
        if step == last or step % config.checkpoint.every == 0 or (names and step in best):
            checkpoint(experiment, step, best=best)
    early_end = why_ended(plan.root, config)
    if early_end is not None:
        log_entry("step", f"ended {early_end}")
    for step in (0, last):  # the table needs these scores: those of an early end, and those whose files were damaged
        evaluate_agents(experiment, step, _missing_names(experiment, step), benchmarks, runner, progress.evaluated)
    progress.ended(last)
    tracking.send_soon()


def _missing_names(experiment: Experiment, step: int) -> list[str]:
    """Benchmarks of the result table whose results of this step are missing or damaged."""
    is_intact = experiment.ledger.store.is_intact
    names = dict.fromkeys([*benchmarks_after(experiment.config, step), *experiment.config.evaluate.final])
    return [n for n in names if not all(is_intact(step, result_phase(n, agent)) for agent in experiment.agents)]


def evaluate_agents(
    experiment: Experiment,
    step: int,
    names: Sequence[str],
    benchmarks: Mapping[str, Benchmark],
    runner: Runner,
    tell: Callable[[EvaluationResult], None],
) -> None:
    """Evaluate every agent as of `step` on the named benchmarks, each once, and call `tell` with each result."""
    handles: dict[tuple[str, str], Handle | None] = {}
    busy: dict[str, Handle] = {}  # an agent's benchmarks run one after the other
    named = [benchmarks[name] for name in dict.fromkeys(names)]
    answers = {agent: Answers(experiment, step, agent, named) for agent in experiment.agents}
    # Agents are the outer loop, so that agents that share a device are swapped only once.
    for agent, benchmark in itertools.product(experiment.agents, named):
        after = [busy[agent]] if agent in busy else []
        last = start_evaluation(experiment, step, agent, benchmark, runner, answers=answers[agent], after=after)
        handles[benchmark.name, agent] = last
        if last is not None:
            busy[agent] = last
    for name, agent in itertools.product(dict.fromkeys(names), experiment.agents):
        tell(finish_evaluation(experiment, step, agent, benchmarks[name], handles[name, agent]))


def _finish(plan: Plan, experiment: Experiment, tracking: Tracking) -> ExperimentResult:
    table = result_table(experiment)
    digests = {
        agent: experiment.ledger.update(last_step(plan.root, plan.config), agent).trace.digest
        for agent in experiment.agents
    }
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    value: dict[str, Any] = {"id": plan.id, "table": rows, "digests": digests, "versions": version_tags()}
    tracking.finish("FINISHED")  # before the result: a run that is killed here goes on, and closes MLflow's runs
    if not keeps_optimizer(plan.config):
        drop_optimizers(plan.root)
    write_json(plan.root / RESULT_FILE, value)  # marks the experiment complete
    return ExperimentResult(root=plan.root, **value)
