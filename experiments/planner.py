"""From a grid's declaration to experiments: expanded, deduplicated, each with its state.

A grid is pair x method x seed. A method that shares no rollouts trains each agent alone, in an experiment of one agent
that every pair with this agent shares: the paper's Tables 1 and 7 need 33 trainings for their 60 rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035  OmegaConf reads these annotations

from omegaconf import DictConfig, OmegaConf

from experiments.layouts import check_layout
from experiments.published.models import published_shapes
from flows.planning.compose import compose, file_stem, merged, read_declaration
from flows.planning.plans import Plan, plan, with_ranks
from flows.records.folders import experiments_dir
from flows.records.states import standing_of
from hacpo_core.config import ExperimentConfig, PairConfig
from hacpo_core.config.checks import validate
from hacpo_core.config.identity import experiment_id
from hacpo_core.engines.models.memory import check_fits, sizes_of
from hacpo_core.errors import CapacityError, ConfigError, DataError, ModelError
from hacpo_core.methods.registry import trains_alone


@dataclass(frozen=True)
class GridEntry:
    """Pairs x methods under the same settings."""

    pairs: List[str]  # noqa: UP006
    methods: List[str]  # noqa: UP006
    settings: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """nested fields of the configuration, over pair, method and hardware"""
    label: Optional[str] = None  # noqa: UP045
    """tells variants of one method apart in tables"""


@dataclass(frozen=True)
class ReportConfig:
    """What `hacpo report` shows."""

    table: str = "plain"
    """layout, and with it the printed table that stands beside the measured numbers"""
    benchmarks: Optional[List[str]] = None  # noqa: UP006, UP045
    """that count; default: all of evaluate.final"""
    against: Optional[List[str]] = None  # noqa: UP006, UP045
    """methods that all others are compared with, a table each; default: HACPO is compared with all others"""


@dataclass(frozen=True)
class RateConfig:
    """What an estimate assumes where nothing is measured yet."""

    response_tokens: float
    """mean length of a response"""
    sampled_tokens_per_gpu_s: float
    trained_tokens_per_gpu_s: float
    source: str
    """where these numbers come from"""
    billions: Optional[float] = None  # noqa: UP045
    """parameters of the model that the rates are of, in billions; others sample and train faster or slower
    (`experiments.estimate`). null: all models alike"""


@dataclass(frozen=True)
class GridConfig:
    """A file of `experiments/grids`."""

    title: str
    entries: List[GridEntry]  # noqa: UP006
    about: str = ""
    """shown before the grid runs"""
    hardware: str = "cpu"
    """name in experiments/hardware"""
    seeds: List[int] = field(default_factory=lambda: [0])  # noqa: UP006
    report: ReportConfig = field(default_factory=ReportConfig)
    rates: Optional[RateConfig] = None  # noqa: UP045


@dataclass(frozen=True, slots=True)
class Cell:
    """One agent's place in a table. `root` need not exist; `reason` says why a cell is not done."""

    pair: str
    method: str
    label: str
    seed: int
    agent: str
    experiment: str
    root: Path
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A grid's cells in the order of its file, and the experiments behind them by id."""

    name: str
    config: GridConfig
    cells: list[Cell]
    plans: dict[str, Plan]

    def experiments(self, *states: str) -> list[Plan]:
        """Each experiment once, of the given states (all, where none is given)."""
        names = dict.fromkeys(cell.experiment for cell in self.cells if not states or cell.status in states)
        return [self.plans[name] for name in names]


def load_grid(name: str) -> GridConfig:
    """A grid by name, or from a YAML file by path.

    Raises:
        ConfigError: there is none, or a field is missing, unknown or of the wrong kind.
    """
    found: GridConfig = merged(GridConfig, [(f"grid {name}", read_declaration("grid", name))], remedy="fix its file")
    for field_name, values in (("seeds", found.seeds), ("entries", found.entries)):
        if not values:
            raise ConfigError(f"grid {name}: {field_name} is empty; fix its file")
    for entry in found.entries:
        if not entry.pairs or not entry.methods:
            raise ConfigError(f"grid {name}: an entry has no pairs or no methods; fix its file")
        for taken, instead in (("seed", "the grid's seeds"), ("runtime.runs_dir", "--runs-dir")):
            if OmegaConf.select(OmegaConf.create(entry.settings), taken) is not None:
                raise ConfigError(f"grid {name}: an entry sets {taken}; use {instead}")
    rates = found.rates
    # "not above" is true of nan as well
    if rates is not None and not all(
        rate > 0
        for rate in (rates.response_tokens, rates.sampled_tokens_per_gpu_s, rates.trained_tokens_per_gpu_s)
        + (() if rates.billions is None else (rates.billions,))
    ):
        raise ConfigError(f"grid {name}: rates must be above 0; fix its file")
    return found


def plan_grid(
    name: str,
    *,
    runs_dir: Path,
    hardware: str | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
) -> GridPlan:
    """Expand a grid and look up the state of each experiment; nothing is loaded and nothing is written.

    Args:
        name: of the grid, or path of a YAML file.
        runs_dir: folder of all runs.
        hardware, seeds: in place of the grid's own.
        overrides: "section.field=value", for every experiment; one about an agent (`pair.agents.<name>.…`) goes to the
            pairs that have it.

    Raises:
        ConfigError: an unknown grid, pair, method or field, or a contradiction between fields.
    """
    for override in overrides:
        if override.startswith("seed="):
            raise ConfigError(f"{override}: a grid's seeds are given together; use --seeds")
        if override.startswith("runtime.runs_dir="):
            raise ConfigError(f"{override}: a grid's experiments lie together; use --runs-dir")
    config = load_grid(name)
    config = dataclasses.replace(config, hardware=hardware or config.hardware, seeds=list(seeds or config.seeds))
    if len(set(config.seeds)) < len(config.seeds):
        raise ConfigError(f"grid {name}: seeds {config.seeds} name one twice")
    if min(config.seeds) < 0:
        raise ConfigError(f"grid {name}: got the seed {min(config.seeds)}, expected none below 0")
    found: dict[tuple[str, tuple[str | None, ...]], _Found] = {}
    cells: dict[tuple[Any, ...], Cell] = {}
    for entry in config.entries:
        for pair, method in ((p, m) for p in entry.pairs for m in entry.methods):
            pair_overrides = [*_overrides_for(pair, config, overrides), f"runtime.runs_dir={runs_dir}"]
            composed = compose(pair, method, hardware=config.hardware, entry=entry.settings, overrides=pair_overrides)
            for seed in config.seeds:
                whole = dataclasses.replace(composed, seed=seed)
                for part in trainings(whole):
                    key = (experiment_id(part, {}).rpartition("-")[2], _named_files(part))
                    if key not in found:
                        found[key] = _find(part, runs_dir)
                    for cell in found[key].cells(part, whole.pair.name, method, entry.label or ""):
                        place = (cell.pair, cell.method, cell.label, seed, cell.agent)
                        if cells.setdefault(place, cell) != cell:
                            raise ConfigError(
                                f"grid {name}: pair {cell.pair}, method {method} stands there twice, differently; "
                                "give one entry a label"
                            )
    plans = {item.plan.id: item.plan for item in found.values()}
    evaluated = {benchmark for planned in plans.values() for benchmark in planned.config.evaluate.final}
    check_layout(config.report.table, config.report.benchmarks, evaluated)
    return GridPlan(file_stem(name), config, list(cells.values()), plans)


def _named_files(config: ExperimentConfig) -> tuple[str | None, ...]:
    """Models and data by path: of an id only their contents are a part, and to plan each cell takes a while."""
    models = [agent.path for agent in config.pair.agents.values()]
    benchmarks = [benchmark.file for _, benchmark in sorted(config.evaluate.benchmarks.items())]
    train_sets = [declared.file for declared in config.data.sets.values()]
    return (*models, config.data.directory, *train_sets, *benchmarks)


def _overrides_for(pair: str, config: GridConfig, overrides: Sequence[str]) -> list[str]:
    """The overrides that concern this pair.

    Raises:
        ConfigError: an override names an agent that no pair of the grid has.
    """
    about_agents = [override for override in overrides if override.startswith("pair.agents.")]
    if not about_agents:
        return list(overrides)

    def agents_of(name: str) -> list[str]:
        found = OmegaConf.select(read_declaration("pair", name), "pair.agents")
        return [str(agent) for agent in found] if isinstance(found, DictConfig) else []

    def concerns(override: str, agents: list[str]) -> bool:
        return any(override.startswith(f"pair.agents.{agent}.") for agent in agents)

    everyone = [agent for entry in config.entries for name in entry.pairs for agent in agents_of(name)]
    for override in about_agents:
        if everyone and not concerns(override, everyone):  # without agents a pair file is broken: `compose` says how
            raise ConfigError(f"{override}: no pair of this grid has that agent; expected one of {', '.join(everyone)}")
    own = agents_of(pair)
    return [override for override in overrides if override not in about_agents or concerns(override, own)]


def trainings(config: ExperimentConfig) -> Iterator[ExperimentConfig]:
    """One experiment of each agent where its partners change nothing, else the experiment itself."""
    if not trains_alone(config.method) or len(config.pair.agents) == 1:
        yield config
        return
    for name, agent in config.pair.agents.items():
        alone = dataclasses.replace(config, pair=PairConfig(name=name, agents={name: agent}))
        validate(alone)
        yield alone


@dataclass(frozen=True, slots=True)
class _Found:
    plan: Plan
    status: str
    reason: str

    def cells(self, config: ExperimentConfig, pair: str, method: str, label: str) -> list[Cell]:
        """One cell per agent, under the names that a grid entry gives the experiment."""
        return [
            Cell(
                pair=pair,
                method=method,
                label=label,
                seed=config.seed,
                agent=agent,
                experiment=self.plan.id,
                root=self.plan.root,
                status=self.status,
                reason=self.reason,
            )
            for agent in config.pair.agents
        ]


def _find(config: ExperimentConfig, runs_dir: Path) -> _Found:
    shapes = published_shapes(config)
    placed = with_ranks(config, sizes_of(shapes))  # provisional: models that are no paper's may be of other sizes
    try:
        if len(shapes) == len(config.pair.agents):
            check_fits(placed, shapes)  # before anybody fetches a model that has no room
        planned = plan(config)
    except (ModelError, DataError, CapacityError) as error:
        name = experiment_id(config, {})  # provisional: the real one depends on the files that are not there
        return _Found(Plan(name, placed, experiments_dir(runs_dir) / name), "unavailable", str(error))
    standing = standing_of(planned.root)
    return _Found(planned, standing.state, standing.reason)


def matrix(grid: GridPlan) -> list[Mapping[str, Any]]:
    """One row per pair, agent and method, one column per seed with the cell's state."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in grid.cells:
        key = (cell.pair, cell.agent, cell.method, cell.label)
        row = rows.setdefault(key, dict(zip(("pair", "agent", "method", "label"), key, strict=True)))
        row[f"seed {cell.seed}"] = cell.status
    return list(rows.values())
