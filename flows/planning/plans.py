"""Plans of experiments: check, identify, save and find them before any model is loaded; does not import torch."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from flows.planning.capacity import check_fits, memory_fields, with_memory_plan, with_ranks
from flows.planning.compose import load_config, to_yaml
from flows.planning.memory import folder_shape, gpu_gib, sizes_of
from flows.planning.user_code import code_digest
from flows.records.files import experiment_ids, experiments_dir, nearest_ids
from flows.records.mlflow_address import sqlite_path, sqlite_uri, tracking_uri
from flows.records.states import CONFIG_FILE
from hacpo_core.config import PARTS, ExperimentConfig, ProblemSetConfig
from hacpo_core.config.counts import sharing_agents, train_set_counts
from hacpo_core.config.identity import experiment_id
from hacpo_core.config.replays import check_checkpoints
from hacpo_core.config.threads import num_threads
from hacpo_core.data.benchmarks import Benchmark, load_benchmark
from hacpo_core.data.problem_sets import problem_file
from hacpo_core.data.rows import warn_once
from hacpo_core.data.training import load_training
from hacpo_core.errors import ConfigError, DataError, HacpoError, ModelError, StoreError
from hacpo_core.files import read_json, sha256_of, write_atomically, write_json
from hacpo_core.methods.base import MethodPart
from hacpo_core.placement.initial_model import InitialModel

CONTENTS_FILE = "contents.json"
"""digests of the models, data files and user code that the configuration refers to"""
SHARED_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse.", "wekafs", "9p", "afs", "pvfs")
"""beginnings of the kinds of file systems that several machines mount"""
_REWRITE = "run the command that planned the experiment again to rewrite it"


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment before anything is loaded: its configuration, id and folder."""

    id: str
    config: ExperimentConfig
    root: Path
    contents: Mapping[str, str] | None = None
    """digests that its id was computed from (`contents_of`); None if it was found on disk"""


def models_dir(config: ExperimentConfig) -> Path:
    """Folder of the models made here: tiny, converted or warmed up."""
    return Path(config.runtime.runs_dir) / "models"


def plan(config: ExperimentConfig) -> Plan:
    """Check everything that can be checked without loading a model, and compute the experiment's id.

    Raises:
        HacpoError: a model folder or a data file cannot be used, or the models do not fit into GPU memory.
    """
    check_checkpoints(config)
    config = _with_absolute_paths(config)
    check_databases(config)
    reason_alone = why_alone(config)
    if reason_alone is not None:
        warn_once(reason_alone)
    models = initial_models(config)
    with all_problems() as check:
        for model in models.values():
            check(model.check)
    if gpu_gib(config) is not None or sharing_agents(config) or memory_fields(config):
        shapes = {
            name: folder_shape(model.base_folder) for name, model in models.items() if model.agent.path is not None
        }
        config = with_ranks(config, _tiny_sizes(config) | sizes_of(shapes))
        config = with_memory_plan(config, shapes)
        check_fits(config, shapes)
    sets = load_training(config.data).sets
    for name, size in train_set_counts(config).items():
        if len(sets[name]) < size:
            raise ConfigError(
                f"train.problems: got {config.train.problems}, of which {size} are from data.sets.{name}, but it has "
                f"{len(sets[name])} training problems; lower it"
            )
    load_benchmarks(config)
    contents = contents_of(config)
    name = experiment_id(config, contents)
    return Plan(name, config, experiments_dir(Path(config.runtime.runs_dir)) / name, contents)


def check_databases(config: ExperimentConfig) -> None:
    """Raise a ConfigError if a run on a cluster would keep a SQLite database on a file system that machines share.

    SQLite's locks do not hold there, and a database that two machines write is soon corrupt.
    """
    if config.placement.kind != "ray" or config.placement.ray.address is None:
        return
    runs_dir = Path(config.runtime.runs_dir).absolute()
    places = [runs_dir / "prefect"] if config.runtime.runner == "prefect" else []
    if config.tracking.enabled:
        database = sqlite_path(tracking_uri(config.tracking.uri, runs_dir))
        places += [] if database is None else [database]
    for place in places:
        kind = file_system(place)
        if kind.startswith(SHARED_FILE_SYSTEMS):
            raise ConfigError(
                f"runtime.runs_dir: {place} is a SQLite database on {kind}, which the machines of a cluster share and "
                "where its locks do not hold; set runtime.runner=direct and tracking.enabled=false, or tracking.uri to "
                "an MLflow server; `hacpo sync` fills MLflow afterwards"
            )


def file_system(path: Path) -> str:
    """Kind of the file system that a path lies on, such as ext4 or nfs4; empty if it is unknown."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[parent] for parent in (path, *path.parents) if parent in mounts), "")


def why_alone(config: ExperimentConfig) -> str | None:
    """Why a method that reads partners' responses reads none here; None if it does, or if it reads nobody's."""
    method = config.method
    parts: list[MethodPart] = [getattr(method, part) for part in PARTS]
    # A class that does not set `reads_partners` inherits True, which says nothing about it.
    reads = any(part.reads_partners and type(part).reads_partners is not MethodPart.reads_partners for part in parts)
    if len(config.pair.agents) > 1 or not (method.shares_rollouts or reads):
        return None
    return (
        f"pair {config.pair.name} has one agent, so {method.name} has no partner whose responses it could "
        f"{'train on' if method.shares_rollouts else 'read'}, and trains on its own alone; add an agent, or use a "
        "method without partners, such as gspo"
    )


@contextmanager
def all_problems() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Yields a function that makes a check; what all failed checks say is one error at the end of the block."""
    problems: list[HacpoError] = []

    def check(work: Callable[[], object]) -> None:
        try:
            work()
        except (ModelError, DataError) as error:
            problems.append(error)

    yield check
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise type(problems[0])("\n".join(map(str, problems)))


def _tiny_sizes(config: ExperimentConfig) -> dict[str, int]:
    """Number of parameters of the tiny models among the agents that share ranks."""
    from hacpo_core.tiny.models import num_parameters  # imports torch

    tiny = {k: config.pair.agents[k].tiny for k in sharing_agents(config)}
    return {k: num_parameters(model) for k, model in tiny.items() if model is not None}


def _with_absolute_paths(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration with absolute paths, because a worker runs in another working directory.

    An absolute HACPO_DATA_DIR is not stored, since it may differ between machines.
    """
    data, tracking = config.data, config.tracking
    directory = Path(data.directory or os.environ.get("HACPO_DATA_DIR") or "data")
    if data.directory is not None or (directory.is_dir() and not directory.is_absolute()):
        data = replace(data, directory=str(directory.absolute()))
    database = sqlite_path(tracking.uri or "")
    if database is not None:
        tracking = replace(tracking, uri=sqlite_uri(database.absolute()))
    agents = dict(config.pair.agents)
    for name, agent in agents.items():
        if agent.path is not None and Path(agent.path).exists():
            agents[name] = agent = replace(agent, path=str(Path(agent.path).absolute()))
        warm_up = agent.warm_up
        if warm_up is not None and warm_up.weak and Path(warm_up.weak).is_dir():
            agents[name] = replace(agent, warm_up=replace(warm_up, weak=str(Path(warm_up.weak).absolute())))
    return replace(config, data=data, tracking=tracking, pair=replace(config.pair, agents=agents))


def initial_models(config: ExperimentConfig) -> dict[str, InitialModel]:
    """The models with which the agents begin, by agent."""
    return {
        name: InitialModel(
            name,
            agent,
            models_dir(config),
            data_dir=config.data.directory,
            device="cpu" if agent.tiny is not None else config.engine.device,
            stops_at_turn_end=config.rollout.stops_at_turn_end,
            num_threads=num_threads(config),
        )
        for name, agent in config.pair.agents.items()
    }


def unused_folders(runs_dir: Path) -> list[Path]:
    """Folders of models that no run begins with, and those that interrupted deletions left.

    Raises:
        ConfigError: the configuration of a run cannot be read.
    """
    used: set[Path] = set()
    for experiment in experiment_ids(runs_dir):
        for model in initial_models(find_plan(runs_dir, experiment).config).values():
            with suppress(ModelError, DataError):  # what it is made of is gone, so the run cannot go on
                used |= {model.base_folder, model.folder}
    return sorted({*(runs_dir / "models").glob("[!.]*"), *(runs_dir / "deleted").glob("*")} - used)


def contents_of(config: ExperimentConfig) -> dict[str, str]:
    """Digests of models, data files and user code, keyed by what they are used for.

    Raises:
        HacpoError: one of them does not exist.
    """
    digests = {what: digest for model in initial_models(config).values() for what, digest in model.contents().items()}
    digests |= _data_digests(config)
    names_by_context = {f"method.{part}": getattr(config.method, part).name for part in PARTS}
    names_by_context |= {f"reward {name}": name for name in config.reward.functions}
    for context, name in names_by_context.items():
        module, colon, _ = name.partition(":")
        if colon:
            digests[context] = code_digest(context, module)
    return digests


def check_contents(plan: Plan) -> None:
    """Raise a DataError if a model, a data file or user code has changed since the experiment was planned."""
    path = plan.root / CONTENTS_FILE
    if not path.is_file():  # a probe saves no plan
        return
    try:
        saved_contents: dict[str, str] = read_json(path)
    except StoreError as error:
        raise StoreError(f"{error}; {_REWRITE}") from error
    contents = contents_of(plan.config)
    changed_names = [name for name, digest in contents.items() if saved_contents.get(name, digest) != digest]
    if changed_names:
        raise DataError(
            f"{plan.id}: {', '.join(changed_names)} changed since the experiment was planned; restore the previous "
            "contents, or run `hacpo train` again to start a new experiment"
        )


def _data_digests(config: ExperimentConfig) -> dict[str, str]:
    """SHA-256 (hex) of every data file, keyed by "train <set>" or "benchmark <name>"."""
    directory = config.data.directory
    sets: dict[str, tuple[str, ProblemSetConfig]] = {
        f"train {name}": (f"data.sets.{name}", config.data.sets[name]) for name in config.data.train
    }
    benchmarks = config.evaluate.benchmarks.items()
    sets |= {f"benchmark {name}": (f"evaluate.benchmarks.{name}", benchmark) for name, benchmark in benchmarks}
    digests: dict[str, str] = {}

    def add(context: str) -> None:
        path = problem_file(*sets[context], directory)
        if path is not None:
            digests[context] = sha256_of(path)

    with all_problems() as check:
        for context in sets:
            check(partial(add, context))
    return digests


def load_benchmarks(config: ExperimentConfig) -> dict[str, Benchmark]:
    """Load every benchmark that the configuration declares, by name; an error has a line for each that is missing."""
    benchmarks: dict[str, Benchmark] = {}

    def load(name: str) -> None:
        benchmarks[name] = load_benchmark(name, config.evaluate.benchmarks[name], config.data)

    with all_problems() as check:
        for name in config.evaluate.benchmarks:
            check(partial(load, name))
    return benchmarks


def check_agent(plan: Plan, agent: str) -> None:
    """Raise a ConfigError if the experiment has no agent of this name."""
    agents = plan.config.pair.agents
    if agent not in agents:
        raise ConfigError(f"agent {agent!r}: expected one of {', '.join(agents)}, the agents of {plan.id}")


def save_plan(plan: Plan) -> None:
    """Write the resolved configuration and the digests into the experiment's folder."""
    contents = contents_of(plan.config) if plan.contents is None else plan.contents
    write_json(plan.root / CONTENTS_FILE, dict(contents))
    write_atomically(plan.root / CONFIG_FILE, to_yaml(plan.config).encode())


def find_plan(runs_dir: Path, experiment: str) -> Plan:
    """The plan of an existing experiment, by its id or an unambiguous prefix; whole names come before parts of one.

    Raises:
        ConfigError: none or several match.
    """
    folder, ids = experiments_dir(runs_dir), experiment_ids(runs_dir)
    matching_ids = (
        [name for name in ids if name == experiment]
        or [name for name in ids if name.startswith(f"{experiment}-")]  # tiny is the pair tiny before tiny_size
        or [name for name in ids if name.startswith(experiment)]
    )
    if len(matching_ids) != 1:
        nearest = nearest_ids(runs_dir, experiment)
        hint = f"found {', '.join(matching_ids)}" if matching_ids else f"the nearest are {nearest}"
        raise ConfigError(f"experiment {experiment!r}: expected the id of one experiment in {folder}; {hint}")
    path = folder / matching_ids[0] / CONFIG_FILE
    try:
        config = load_config(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; if the file is corrupt, {_REWRITE}") from error
    # The runs folder may have been moved, or the saved path may be relative to another working directory.
    config = replace(config, runtime=replace(config.runtime, runs_dir=str(runs_dir)))
    return Plan(matching_ids[0], config, folder / matching_ids[0])
