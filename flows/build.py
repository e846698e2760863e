"""From a configuration to an experiment that can run: models, data, verifier, store."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flows.compose import load_config, to_yaml
from flows.slots import gpu_slots
from flows.states import CONFIG_FILE
from hacpo_core.agents import AgentTokenizer, initial_folder
from hacpo_core.algo.methods import find_baseline
from hacpo_core.algorithm import Experiment, method_of
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.benchmarks import Benchmark, benchmark_file, load_benchmark
from hacpo_core.data.problems import data_file, load_problems
from hacpo_core.engines.memory import check_fits, folder_shape, gpu_gib
from hacpo_core.engines.models import check_device, model_fingerprint
from hacpo_core.errors import ConfigError, DataError
from hacpo_core.ledger import Ledger
from hacpo_core.placement.base import Placement
from hacpo_core.placement.local import LocalPlacement
from hacpo_core.records import Problem
from hacpo_core.store import ExperimentLock, StepStore, sha256_of, write_atomically
from hacpo_core.tiny.models import Progress
from hacpo_core.validation import experiment_id
from hacpo_core.verify.pool import VerifierPool

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment before anything is loaded: its configuration, id, folder and models."""

    id: str
    config: ExperimentConfig
    root: Path


def models_dir(config: ExperimentConfig) -> Path:
    """Where tiny models are kept."""
    return Path(config.runtime.runs_dir) / "models"


def plan(config: ExperimentConfig) -> Plan:
    """Check everything that can be checked without loading a model, and name the experiment.

    Raises:
        HacpoError: a model folder or a data file cannot be used, or the models do not fit into the GPU.
    """
    try:
        find_baseline(config.method.baseline)
    except ValueError as error:
        raise ConfigError(f"method.baseline: {error}") from error
    folders = {
        name: initial_folder(name, agent, models_dir=models_dir(config))
        for name, agent in config.pair.agents.items()
        if agent.path is not None
    }
    fingerprints = {name: model_fingerprint(folder) for name, folder in folders.items()}
    if gpu_gib(config) is not None:
        agents = config.pair.agents
        shapes = {
            name: folder_shape(folder, trust_remote_code=agents[name].trust_remote_code)
            for name, folder in folders.items()
        }
        check_fits(config, shapes)
    fingerprints |= {context: digest for context, (_, digest) in data_files(config).items()}
    found = load_problems(config.data)
    if len(found) < config.train.problems:
        raise ConfigError(f"train.problems: got {config.train.problems}, but there are {len(found)} training problems")
    load_benchmarks(config)
    name = experiment_id(config, fingerprints)
    return Plan(name, config, Path(config.runtime.runs_dir) / "experiments" / name)


def data_files(config: ExperimentConfig) -> dict[str, tuple[Path, str]]:
    """Path and SHA-256 (hex) of every data file, by what it is for: "train" or the name of a benchmark."""
    paths = {"train": data_file(config.data)}
    for name, benchmark in config.evaluate.benchmarks.items():
        paths[f"benchmark {name}"] = benchmark_file(name, benchmark, config.data.directory)
    return {context: (path, sha256_of(path)) for context, path in paths.items() if path is not None}


def load_benchmarks(config: ExperimentConfig) -> dict[str, Benchmark]:
    """Every benchmark that the configuration declares, by name."""
    benchmarks = config.evaluate.benchmarks
    return {name: load_benchmark(name, benchmark, config.data.directory) for name, benchmark in benchmarks.items()}


def save_plan(plan: Plan) -> None:
    """Write the resolved configuration into the experiment's folder, where flows and `resume` find it."""
    write_atomically(plan.root / CONFIG_FILE, lambda path: path.write_text(to_yaml(plan.config), encoding="utf-8"))


def find_plan(runs_dir: Path, experiment: str) -> Plan:
    """The plan of an experiment that was started before, by its id or an unambiguous beginning of it.

    Raises:
        ConfigError: there is none, or several.
    """
    folder = runs_dir / "experiments"
    found = sorted(path.name for path in folder.glob(f"{experiment}*") if path.is_dir())
    if experiment in found:
        found = [experiment]
    if len(found) != 1:
        names = ", ".join(found or sorted(path.name for path in folder.glob("*-*"))) or "none"
        raise ConfigError(f"experiment {experiment!r}: expected the id of one experiment in {folder}, found {names}")
    config = load_config(folder / found[0] / CONFIG_FILE)
    # The folder may have been moved, or named from another working directory, since the configuration was saved.
    config = replace(config, runtime=replace(config.runtime, runs_dir=str(runs_dir)))
    return Plan(found[0], config, folder / found[0])


@contextmanager
def open_experiment(
    plan: Plan, *, progress: Mapping[str, Progress] | None = None
) -> Iterator[tuple[Experiment, dict[str, Benchmark]]]:
    """Lock the experiment's folder, load everything, and hand it out with its benchmarks by name.

    Args:
        plan: what to open.
        progress: per agent, called during a warm-up.

    Raises:
        LockedError: another process is writing to it.
        ConfigError: this machine lacks the engine's device.
        HacpoError: a model or a data file cannot be used.
    """
    config = plan.config
    with ExperimentLock(plan.root), gpu_slots(config):
        if config.placement.kind == "local":
            check_device(config.engine.device)
        for leftover in plan.root.rglob(".*.tmp"):
            _log.info("removing %s, left by a process that was killed", leftover)
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        initial = {
            name: initial_folder(
                name, agent, models_dir=models_dir(config), progress=(progress or {}).get(name), checks=False
            )
            for name, agent in config.pair.agents.items()
        }
        with closing(_placement(config, plan.root, initial)) as placement:
            checkpoint = placement.open()
            problems = _short_enough(load_problems(config.data), list(placement.tokenizers.values()), config)
            benchmarks = load_benchmarks(config)
            verifier = config.verifier
            with VerifierPool(
                num_workers=verifier.num_workers,
                timeout_s=verifier.timeout_s,
                memory_mb=verifier.memory_mb,
                style=verifier.style,  # type: ignore[arg-type]
                cache=verifier.cache,
            ) as pool:
                yield (
                    Experiment(
                        id=plan.id,
                        config=config,
                        method=method_of(config),
                        problems=problems,
                        placement=placement,
                        ledger=Ledger(StepStore(plan.root), list(initial)),
                        verifier=pool,
                        opened_at=checkpoint,
                    ),
                    benchmarks,
                )


def _placement(config: ExperimentConfig, root: Path, initial: Mapping[str, Path]) -> Placement:
    if config.placement.kind == "local":
        return LocalPlacement(config, root=root, initial=initial)
    from hacpo_core.placement.ray_actors import RayPlacement  # Ray is an extra, and takes a third of a second

    return RayPlacement(config, root=root, initial=initial)


def _short_enough(problems: list[Problem], agents: list[AgentTokenizer], config: ExperimentConfig) -> list[Problem]:
    """Problems whose prompt every agent can read within `rollout.max_prompt_tokens`; the others are counted."""
    limit = config.rollout.max_prompt_tokens
    kept = [problem for problem in problems if all(len(agent.prompt_ids(problem)) <= limit for agent in agents)]
    if len(kept) < len(problems):
        _log.warning("dropped %d problems whose prompt is over %d tokens", len(problems) - len(kept), limit)
    if len(kept) < config.train.problems:
        raise DataError(
            f"only {len(kept)} of {len(problems)} training problems have prompts of at most {limit} tokens, "
            f"fewer than train.problems={config.train.problems}; raise rollout.max_prompt_tokens"
        )
    return kept
