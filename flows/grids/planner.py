"""Expand a grid's declaration into experiments, without duplicates, each with its state.

A grid is pair x method x seed. A method that shares no rollouts trains each agent in an experiment of its own, which
all pairs with that agent share: the 60 rows of the paper's Tables 1 and 7 need only 33 experiments.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035  OmegaConf reads these annotations

from omegaconf import DictConfig, OmegaConf

from flows.planning.capacity import check_fits, with_memory_plan, with_ranks
from flows.planning.compose import compose, merged
from flows.planning.declarations import file_stem, is_file_name, read_declaration
from flows.planning.memory import published_shapes, sizes_of
from flows.planning.plans import Plan, plan
from flows.records.files import experiments_dir
from flows.records.gridfile import GridCell, GridRecord, recorded_seeds
from flows.records.states import experiment_status
from flows.service.experiment_state import ExperimentState, state_of
from hacpo_core.config import ExperimentConfig, TeamConfig
from hacpo_core.config.checks import validate
from hacpo_core.config.identity import experiment_id
from hacpo_core.errors import CapacityError, ConfigError, DataError, ModelError
from hacpo_core.methods.registry import trains_alone

_REPORT_LAYOUTS = ("plain", "table1", "table2", "table3", "table4", "table6", "table7", "figure3", "figure4")
"""of a report, as named in a grid's `report.table`"""


@dataclass(frozen=True)
class GridEntry:
    """Pairs x methods with common settings."""

    pairs: List[str]  # noqa: UP006
    methods: List[str]  # noqa: UP006
    settings: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    """nested fields of the configuration; they override pair, method and hardware"""
    label: Optional[str] = None  # noqa: UP045
    """distinguishes variants of one method in tables"""


@dataclass(frozen=True)
class ReportConfig:
    """Content of the report."""

    table: str = "plain"
    """layout, which also selects the published table to compare with"""
    benchmarks: Optional[List[str]] = None  # noqa: UP006, UP045
    """benchmarks to compare on; default: all of evaluate.final"""
    against: Optional[List[str]] = None  # noqa: UP006, UP045
    """baselines that all other methods are compared with, one further table each"""


@dataclass(frozen=True)
class RateConfig:
    """Rates for estimates, used until runs of the grid have measured their own."""

    response_tokens: float
    """mean response length, tokens"""
    sampled_tokens_per_gpu_s: float
    trained_tokens_per_gpu_s: float
    source: str
    """origin of these numbers"""
    billions: Optional[float] = None  # noqa: UP045
    """size of the model that the rates are for, billions of parameters; rates of other models are scaled
    (`flows.grids.estimate`). null: the same rates for all models"""


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
class GridPlan:
    """A grid's cells in the order of its file, and their experiments and states by id."""

    name: str
    """that of its file, and the overrides that change what it trains"""
    config: GridConfig
    cells: list[GridCell]
    plans: dict[str, Plan]
    states: dict[str, ExperimentState]

    @property
    def record(self) -> GridRecord:
        """What reports, MLflow and the page need of it."""
        evaluated = dict.fromkeys(name for plan in self.plans.values() for name in plan.config.evaluate.final)
        benchmarks = self.config.report.benchmarks or list(evaluated)
        return GridRecord(self.name, self.config.title, self.config.report.table, benchmarks, self.cells)

    def experiments(self, *states: str) -> list[Plan]:
        """The experiments in the given states, each once; without states, all."""
        return [plan for name, plan in self.plans.items() if not states or self.states[name].state in states]


def load_grid(name: str) -> GridConfig:
    """Load a grid by name, or from the path of a YAML file.

    Raises:
        ConfigError: there is no such grid, or a field is missing, unknown or of the wrong type.
    """
    tree = read_declaration("grid", name)
    grid: GridConfig = merged(GridConfig, [(f"grid {name}", tree)], remedy="fix its file")
    for field_name, values in (("seeds", grid.seeds), ("entries", grid.entries)):
        if not values:
            raise ConfigError(f"grid {name}: {field_name} is empty; fix its file")
    for entry in grid.entries:
        if not entry.pairs or not entry.methods:
            raise ConfigError(f"grid {name}: an entry has no pairs or no methods; fix its file")
        for forbidden, instead in (("seed", "the grid's seeds"), ("runtime.runs_dir", "--runs-dir")):
            if OmegaConf.select(OmegaConf.create(entry.settings), forbidden) is not None:
                raise ConfigError(f"grid {name}: an entry sets {forbidden}; use {instead}")
    rates = grid.rates
    if (
        rates is not None
        and min(rates.response_tokens, rates.sampled_tokens_per_gpu_s, rates.trained_tokens_per_gpu_s) <= 0
    ):
        raise ConfigError(f"grid {name}: rates must be above 0; fix its file")
    return grid


def plan_grid(
    name: str,
    *,
    runs_dir: Path,
    hardware: str | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
) -> GridPlan:
    """Expand a grid and look up the state of each experiment; loads no model and writes nothing.

    Args:
        name: of the grid, or path of a YAML file.
        runs_dir: folder of all runs.
        hardware, seeds: replace those of the grid.
        overrides: each "section.field=value"; one of an agent applies to the pairs that have it.

    Raises:
        ConfigError: an unknown grid, pair, method or field, or contradictory fields.
    """
    config = _checked(name, hardware, seeds, overrides)
    items: dict[tuple[str, tuple[str | None, ...]], tuple[Plan, ExperimentState]] = {}
    cells: dict[tuple[Any, ...], GridCell] = {}
    rows = [(n, entry, p, m) for n, entry in enumerate(config.entries) for p in entry.pairs for m in entry.methods]
    for number, entry, pair, method in rows:
        try:
            pair_overrides = [*_overrides_for(pair, config, overrides), f"runtime.runs_dir={runs_dir}"]
            composed = compose(pair, method, hardware=config.hardware, entry=entry.settings, overrides=pair_overrides)
            parts = [p for seed in config.seeds for p in trainings(dataclasses.replace(composed, seed=seed))]
            keys = [(experiment_id(part, {}).rpartition("-")[2], _named_files(part)) for part in parts]
            for key, part in zip(keys, parts, strict=True):
                items[key] = items[key] if key in items else _plan(part, runs_dir)
        except (ConfigError, ModelError, DataError) as error:
            raise type(error)(f"grid {name}, entries[{number}], pair {pair}, method {method}: {error}") from error
        title = composed.method.name if is_file_name(method) else method
        for key, part in zip(keys, parts, strict=True):
            (part_plan, state), names = items[key], (composed.pair.name, title, entry.label or "", part.seed)
            unavailable = state.reason if state.state == "unavailable" else ""
            settings = experiment_id(dataclasses.replace(part, seed=0), part_plan.contents or {})
            for agent in part.pair.agents:
                _enter(cells, GridCell(*names, agent, part_plan.id, unavailable, settings))
    plans = {plan.id: plan for plan, _ in items.values()}
    states = {plan.id: state for plan, state in items.values()}
    _check_layout(config.report, {benchmark for plan in plans.values() for benchmark in plan.config.evaluate.final})
    changes = [word for word in overrides if not word.startswith(("runtime.", "tracking."))]
    own_name = "-".join([file_stem(name), *(re.sub(r"[^\w.=+]", "_", word) for word in changes)])[:200]
    return GridPlan(own_name, config, list(cells.values()), plans, states)


def with_recorded_seeds(grid: GridPlan, make_plan: Callable[..., GridPlan], runs_dir: Path) -> GridPlan:
    """The grid with all seeds that were ever asked of it, as its page shows it."""
    seeds = recorded_seeds(runs_dir, grid.name) | set(grid.config.seeds)
    return make_plan(seeds=sorted(seeds)) if len(seeds) > len(grid.config.seeds) else grid


def _enter(cells: dict[tuple[Any, ...], GridCell], cell: GridCell) -> None:
    if cells.setdefault(cell.key, cell) != cell:
        raise ConfigError(
            f"two entries have pair {cell.pair} and method {cell.method} with different settings; give one a label"
        )


def _checked(name: str, hardware: str | None, seeds: Sequence[int] | None, overrides: Sequence[str]) -> GridConfig:
    """The grid's declaration with this hardware and these seeds."""
    for override in overrides:
        if override.startswith("seed="):
            raise ConfigError(f"{override}: a grid has a list of seeds; use --seeds")
        if override.startswith("runtime.runs_dir="):
            raise ConfigError(f"{override}: a grid's experiments share one runs folder; use --runs-dir")
    config = load_grid(name)
    config = dataclasses.replace(config, hardware=hardware or config.hardware, seeds=list(seeds or config.seeds))
    if len(set(config.seeds)) < len(config.seeds):
        raise ConfigError(f"grid {name}: got the seeds {config.seeds}, expected each once; remove the duplicates")
    if min(config.seeds) < 0:
        raise ConfigError(f"grid {name}: got the seed {min(config.seeds)}, expected at least 0; change it")
    return config


def _named_files(config: ExperimentConfig) -> tuple[str | None, ...]:
    """Paths of models and data. Ids depend on their contents, which are too slow to hash for every cell."""
    models = [agent.path for agent in config.pair.agents.values()]
    benchmarks = [benchmark.file for _, benchmark in sorted(config.evaluate.benchmarks.items())]
    train_sets = [set_config.file for set_config in config.data.sets.values()]
    return (*models, config.data.directory, *train_sets, *benchmarks)


def _overrides_for(pair: str, config: GridConfig, overrides: Sequence[str]) -> list[str]:
    """The overrides that apply to this pair.

    Raises:
        ConfigError: an override names an agent that no pair of the grid has.
    """
    about_agents = [override for override in overrides if override.startswith("pair.agents.")]
    if not about_agents:
        return list(overrides)

    def agents_of(name: str) -> list[str]:
        agents = OmegaConf.select(read_declaration("pair", name), "pair.agents")
        return [str(agent) for agent in agents] if isinstance(agents, DictConfig) else []

    def concerns(override: str, agents: list[str]) -> bool:
        return any(override.startswith(f"pair.agents.{agent}.") for agent in agents)

    grid_agents = [agent for entry in config.entries for name in entry.pairs for agent in agents_of(name)]
    for override in about_agents:
        if grid_agents and not concerns(
            override, grid_agents
        ):  # for a pair without agents, `compose` reports the error
            raise ConfigError(
                f"{override}: no pair of this grid has that agent; expected one of {', '.join(grid_agents)}"
            )
    pair_agents = agents_of(pair)
    return [override for override in overrides if override not in about_agents or concerns(override, pair_agents)]


def trainings(config: ExperimentConfig) -> Iterator[ExperimentConfig]:
    """The experiment itself, or one experiment per agent if the method trains agents independently."""
    if not trains_alone(config.method) or len(config.pair.agents) == 1:
        yield config
        return
    for name, agent in config.pair.agents.items():
        own_config = dataclasses.replace(config, pair=TeamConfig(name=name, agents={name: agent}))
        validate(own_config)
        yield own_config


def _plan(config: ExperimentConfig, runs_dir: Path) -> tuple[Plan, ExperimentState]:
    shapes = published_shapes(config)
    placed = with_ranks(config, sizes_of(shapes))  # provisional: sizes of models not in the paper are unknown here
    try:
        if len(shapes) == len(config.pair.agents):
            placed = with_memory_plan(placed, shapes)
            check_fits(placed, shapes)  # before the user downloads a model that does not fit
        experiment_plan, unavailable = plan(config), ""
    except (ModelError, DataError, CapacityError) as error:
        name = experiment_id(config, {})  # provisional: the final id depends on the missing files
        experiment_plan, unavailable = Plan(name, placed, experiments_dir(runs_dir) / name), str(error)
    state = state_of(experiment_status(experiment_plan.root), None, unavailable)
    return experiment_plan, state


def matrix(grid: GridPlan) -> list[Mapping[str, Any]]:
    """States of the cells: one row per pair, agent and method, one column per seed."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in grid.cells:
        key = (cell.pair, cell.agent, cell.method, cell.label)
        row = rows.setdefault(key, dict(zip(("pair", "agent", "method", "label"), key, strict=True)))
        row[f"seed {cell.seed}"] = grid.states[cell.experiment].state
    return list(rows.values())


def _check_layout(report: ReportConfig, benchmarks: Collection[str]) -> None:
    """Raise a ConfigError if a report's layout is unknown, or if it shows what no experiment evaluates."""
    layout = report.table
    if layout not in _REPORT_LAYOUTS:
        raise ConfigError(f"report.table: got {layout!r}, expected one of {', '.join(_REPORT_LAYOUTS)}; fix the grid")
    for name in ["math500"] if layout == "table4" else report.benchmarks or []:
        if name not in benchmarks:
            names = ", ".join(sorted(benchmarks)) or "nothing"
            raise ConfigError(f"report: layout {layout} shows {name}, evaluate.final has {names}; fix the grid")
