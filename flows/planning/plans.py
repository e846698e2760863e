"""Experiments before anything is loaded: checked, named, saved, found again; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flows.planning.compose import load_config, to_yaml
from flows.planning.user_code import code_digest
from flows.records.folders import experiment_ids, experiments_dir
from flows.records.states import CONFIG_FILE
from hacpo_core.config import SEAMS, ExperimentConfig, WeakWarmupConfig
from hacpo_core.config.addresses import sqlite_path
from hacpo_core.config.counts import shared_out, sharing_agents, train_set_counts
from hacpo_core.config.identity import experiment_id
from hacpo_core.data.benchmarks import Benchmark, load_benchmark
from hacpo_core.data.problem_sets import problem_file
from hacpo_core.data.solutions import read_solutions, solutions_file
from hacpo_core.data.training import load_training
from hacpo_core.engines.models.folders import check_model_folder, find_model, find_weak_model, model_fingerprint
from hacpo_core.engines.models.memory import check_fits, folder_shape, gpu_gib, sizes_of
from hacpo_core.errors import ConfigError, DataError, StoreError
from hacpo_core.store.files import read_json, sha256_of, write_atomically, write_json

CONTENTS_FILE = "contents.json"
"""digests of what the configuration names by path"""
_ANEW = "the command that planned the experiment writes it anew"


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
    config = _anchored(config)
    agents, folders = config.pair.agents, _model_folders(config)
    for name, folder in folders.items():
        check_model_folder(folder, agent=name, has_template_override=agents[name].chat_template is not None)
    for name, warmup in _weak_warmups(config).items():
        check_model_folder(find_weak_model(warmup.weak, agent=name), agent=name, has_template_override=True)
        read_solutions(f"pair.agents.{name}.weak_warmup", warmup, config.data.directory)
    if gpu_gib(config) is not None or sharing_agents(config):
        shapes = {
            name: folder_shape(folder, trust_remote_code=agents[name].trust_remote_code)
            for name, folder in folders.items()
        }
        config = with_ranks(config, _tiny_sizes(config) | sizes_of(shapes))
        check_fits(config, shapes)
    sets = load_training(config.data).sets
    for name, size in train_set_counts(config).items():
        if len(sets[name]) < size:
            raise ConfigError(
                f"train.problems: got {config.train.problems}, of which {size} are from data.sets.{name}, but it has "
                f"{len(sets[name])} training problems; lower it"
            )
    load_benchmarks(config)
    name = experiment_id(config, contents_of(config))
    return Plan(name, config, experiments_dir(Path(config.runtime.runs_dir)) / name)


def with_ranks(config: ExperimentConfig, parameters: Mapping[str, int]) -> ExperimentConfig:
    """The same with a number of ranks for every agent that `placement.num_ranks: auto` leaves without one.

    One that trains alone gets half of `placement.total_ranks`, so that two such trainings fill a machine.

    Args:
        config: a valid configuration.
        parameters: of each agent's model; where one is not known, all agents count alike.
    """
    sharers, agents, total = sharing_agents(config), config.pair.agents, config.placement.total_ranks
    if not sharers:
        return config
    assert total is not None, "validate() lets no auto pass without it"
    left = total - sum(agent.num_ranks or 0 for agent in agents.values())
    is_known = all(k in parameters for k in sharers)
    ranks = shared_out({k: parameters[k] if is_known else 1 for k in sharers}, left, least=1)
    if len(agents) == 1:
        ranks = {k: max(1, total // 2) for k in sharers}
    placed = {k: replace(agent, num_ranks=ranks.get(k, agent.num_ranks)) for k, agent in agents.items()}
    return replace(config, pair=replace(config.pair, agents=placed))


def _tiny_sizes(config: ExperimentConfig) -> dict[str, int]:
    """Parameters of those agents that share ranks and are made on this machine."""
    from hacpo_core.tiny.models import num_parameters  # brings torch

    tiny = {k: config.pair.agents[k].tiny for k in sharing_agents(config)}
    return {k: num_parameters(model) for k, model in tiny.items() if model is not None}


def _anchored(config: ExperimentConfig) -> ExperimentConfig:
    """The same with absolute paths: a worker trains in a folder of its own. HACPO_DATA_DIR stays each machine's own,
    unless it is relative.
    """
    data, tracking = config.data, config.tracking
    directory = Path(data.directory or os.environ.get("HACPO_DATA_DIR") or "data")
    if data.directory is not None or (directory.is_dir() and not directory.is_absolute()):
        data = replace(data, directory=str(directory.absolute()))
    database = sqlite_path(tracking.uri or "")
    if database is not None:
        tracking = replace(tracking, uri=f"sqlite:///{database.absolute()}")
    agents = dict(config.pair.agents)
    for name, agent in agents.items():
        if agent.path is not None and Path(agent.path).is_dir():
            agents[name] = agent = replace(agent, path=str(Path(agent.path).absolute()))
        warmup = agent.weak_warmup
        if warmup is not None and Path(warmup.weak).is_dir():
            agents[name] = replace(agent, weak_warmup=replace(warmup, weak=str(Path(warmup.weak).absolute())))
    return replace(config, data=data, tracking=tracking, pair=replace(config.pair, agents=agents))


def _model_folders(config: ExperimentConfig) -> dict[str, Path]:
    agents = config.pair.agents.items()
    return {name: find_model(agent.path, agent=name) for name, agent in agents if agent.path is not None}


def _weak_warmups(config: ExperimentConfig) -> dict[str, WeakWarmupConfig]:
    agents = config.pair.agents.items()
    return {name: agent.weak_warmup for name, agent in agents if agent.weak_warmup is not None}


def contents_of(config: ExperimentConfig) -> dict[str, str]:
    """Digests of models, data files and the modules of a user's own seams, by what they are for.

    Raises:
        HacpoError: one of them is not there.
    """
    found = {name: model_fingerprint(folder) for name, folder in _model_folders(config).items()}
    for name, warmup in _weak_warmups(config).items():
        found[f"{name} weak_warmup.weak"] = model_fingerprint(find_weak_model(warmup.weak, agent=name))
        file = solutions_file(f"pair.agents.{name}.weak_warmup", warmup, config.data.directory)
        found[f"{name} weak_warmup.file"] = sha256_of(file)
    found |= {context: digest for context, (_, digest) in data_files(config).items()}
    named = {f"method.{seam}": getattr(config.method, seam).name for seam in SEAMS}
    named |= {f"reward {name}": name for name in config.reward.functions}
    for context, name in named.items():
        module, colon, _ = name.partition(":")
        if colon:
            found[context] = code_digest(context, module)
    return found


def check_contents(plan: Plan) -> None:
    """Raise a DataError where a model, a data file or a user's own code changed since the experiment was planned."""
    path = plan.root / CONTENTS_FILE
    if not path.is_file():  # of a version that kept none
        return
    try:
        before: dict[str, str] = read_json(path)
    except StoreError as error:
        raise StoreError(f"{error}; {_ANEW}") from error
    now = contents_of(plan.config)
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    if changed:
        raise DataError(
            f"{plan.id}: {', '.join(changed)} changed since the experiment was planned; put back what was there, or "
            "run `hacpo train` again, which begins an experiment of its own"
        )


def data_files(config: ExperimentConfig) -> dict[str, tuple[Path, str]]:
    """Path and SHA-256 (hex) of every data file, by what it is for: a training set or a benchmark."""
    directory = config.data.directory
    paths = {
        f"train {name}": problem_file(f"data.sets.{name}", config.data.sets[name], directory)
        for name in config.data.train
    }
    for name, benchmark in config.evaluate.benchmarks.items():
        paths[f"benchmark {name}"] = problem_file(f"evaluate.benchmarks.{name}", benchmark, directory)
    return {context: (path, sha256_of(path)) for context, path in paths.items() if path is not None}


def load_benchmarks(config: ExperimentConfig) -> dict[str, Benchmark]:
    """Every benchmark that the configuration declares, by name."""
    benchmarks = config.evaluate.benchmarks
    return {name: load_benchmark(name, benchmark, config.data) for name, benchmark in benchmarks.items()}


def save_plan(plan: Plan) -> None:
    """Write the resolved configuration into the experiment's folder, where flows and `resume` find it."""
    write_json(plan.root / CONTENTS_FILE, contents_of(plan.config))
    write_atomically(plan.root / CONFIG_FILE, to_yaml(plan.config).encode())


def find_plan(runs_dir: Path, experiment: str) -> Plan:
    """The plan of an experiment that was started before, by its id or an unambiguous beginning of it.

    Raises:
        ConfigError: there is none, or several.
    """
    folder, known = experiments_dir(runs_dir), experiment_ids(runs_dir)
    found = [experiment] if experiment in known else [name for name in known if name.startswith(experiment)]
    if len(found) != 1:
        names = ", ".join(found or known) or "none"
        raise ConfigError(f"experiment {experiment!r}: expected the id of one experiment in {folder}, found {names}")
    path = folder / found[0] / CONFIG_FILE
    try:
        config = load_config(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; if the file is damaged, {_ANEW}") from error
    # The folder may have been moved, or named from another working directory, since the configuration was saved.
    config = replace(config, runtime=replace(config.runtime, runs_dir=str(runs_dir)))
    return Plan(found[0], config, folder / found[0])
