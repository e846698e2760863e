"""From YAML declarations and the command line's overrides to one validated configuration."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hacpo_core.config import (
    SEAMS,
    AgentConfig,
    BenchmarkConfig,
    ExperimentConfig,
    ProblemSetConfig,
    TrainSetConfig,
    as_dict,
    flatten,
)
from hacpo_core.config.checks import validate
from hacpo_core.errors import ConfigError, first_line
from hacpo_core.methods.base import Seam
from hacpo_core.methods.registry import SHIPPED, find

_ProblemSet = TypeVar("_ProblemSet", bound=ProblemSetConfig)

_RETIRED = (("engine", "pack_tokens"), ("engine.vllm", "sync_prompts"))
"""fields of earlier versions that took no effect in experiments that can still be loaded"""
_MOVED = {
    "clip": "method.objective",
    "objective": "method.objective",
    "capability": "method.estimate",
    "advantage": "method.estimate",
    "minibatch": "method.build",
    "method.baseline": "method.estimate.baseline",
    "method.cross_weight": "method.estimate.cross_weight",
    "method.rollout_factor": "method.plan.factor",
    "method.ratio": "method.objective.name",
    "data.source": "data.sets.<name>.kind, with data.train=[<name>]",
    "data.train_file": "data.sets.<name>.file, with data.train=[<name>]",
    "data.template": "data.sets.<name>.template",
    "data.system": "data.sets.<name>.system",
    **{
        f"method.{name}": f"method.objective.{name}"
        for name in ("cross_exponent", "cross_bounds", "cross_is_pessimistic")
    },
}
"""fields and sections of earlier versions, and where they are now"""
_AGENT_FIELDS = "|".join(field.name for field in fields(AgentConfig))
_AGENT_FIELD = re.compile(rf"^pair\.agents\.(?P<agent>[^\[\]=]+)\.(?P<field>({_AGENT_FIELDS})(\.[^=]*)?)=")
DECLARATION_FOLDERS = {
    "pair": "pairs",
    "method": "methods",
    "hardware": "hardware",
    "conformance": "conformance",
    "train_set": "train_sets",
    "benchmark": "benchmarks",
    "grid": "grids",
}


def available(kind: str) -> list[str]:
    """Names of a kind's declarations (of `DECLARATION_FOLDERS`); one that begins with "_" is only to be extended."""
    names = [item.name for item in (files("experiments") / DECLARATION_FOLDERS[kind]).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and not name.startswith("_"))


def read_declaration(kind: str, name: str, *, above: tuple[Any, ...] = ()) -> DictConfig:
    """A declaration by name, or from a YAML file by path; `extends: <name>` in it lays it over another of its kind.

    Args:
        kind: of `DECLARATION_FOLDERS`.
        name: see there, or a path.
        above: files that extend this one, directly or not.

    Raises:
        ConfigError: there is none, it is no YAML mapping, or it extends itself.
    """
    path: Any = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = files("experiments") / DECLARATION_FOLDERS[kind] / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{kind}: got {name!r}, expected one of {', '.join(available(kind))} or a path to a YAML file"
        )
    path = path.resolve() if isinstance(path, Path) else path
    if path in above:
        raise ConfigError(f"{path} extends itself; name another {kind} under extends, or remove the line")
    tree = _read(path)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    below = read_declaration(kind, str(base), above=(*above, path))
    for seam in SEAMS:  # fields of another implementation than the one that this file names
        name, inherited = _section(tree, "method", seam).get("name"), _section(below, "method", seam)
        if name is not None and inherited.get("name") not in (None, name):
            below["method"][seam] = {}
    return OmegaConf.merge(below, tree)  # type: ignore[return-value]


def _read(path: Any) -> DictConfig:
    try:
        tree = OmegaConf.create(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {first_line(error)}; fix it") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path}: expected a YAML mapping of sections")
    return tree


def _read_overrides(overrides: Sequence[str]) -> DictConfig:
    for override in overrides:
        name, equals, _ = override.partition("=")
        if not equals or not name:
            raise ConfigError(f"{override!r}: expected section.field=value, for example rollout.num_samples=4")
    # OmegaConf would split qwen3-1.7b at its dot; brackets keep an agent's name in one piece.
    bracketed = [_AGENT_FIELD.sub(r"pair.agents[\g<agent>].\g<field>=", _quoted(each), count=1) for each in overrides]
    try:
        return OmegaConf.from_dotlist(bracketed)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {' '.join(overrides)!r}: {first_line(error)}") from error


def _quoted(override: str) -> str:
    """The override; a template is taken as it is, though its braces would be YAML's."""
    name, _, value = override.partition("=")
    is_template = (
        name.endswith((".chat_template", ".template", ".system"))
        and value not in ("", "null")
        and value[:1] not in ("'", '"')
    )
    return f"{name}={json.dumps(value)}" if is_template else override


def compose(
    pair: str, method: str, *, hardware: str = "cpu", entry: Any = None, overrides: Sequence[str] = ()
) -> ExperimentConfig:
    """Base < conformance < pair < method < hardware < grid entry < command line, validated.

    Args:
        pair, method, hardware: name of a declaration in `experiments/`, or path of a YAML file.
        entry: a grid entry's own settings, a nested mapping.
        overrides: each "section.field=value".

    Raises:
        ConfigError: an unknown name or field, a value of the wrong kind, a contradiction, a field without effect.
    """
    override_layer = _read_overrides(overrides)
    entry = OmegaConf.create(entry or {})
    layers = [
        ("experiments/base.yaml", _read(files("experiments") / "base.yaml")),
        *((f"{kind} {name}", read_declaration(kind, name)) for kind, name in (("pair", pair), ("method", method))),
        (f"hardware {hardware}", read_declaration("hardware", hardware)),
        ("the grid entry", entry),
        ("the command line", override_layer),
    ]
    presets = [layer.get("conformance") for _, layer in layers if layer.get("conformance")]
    if not isinstance(presets[-1], str):
        raise ConfigError(f"conformance: got {presets[-1]}, expected one of {', '.join(available('conformance'))}")
    layers.insert(1, (f"conformance {presets[-1]}", read_declaration("conformance", presets[-1])))
    _check_agent_overrides(override_layer, layers[2][1])
    _check_moved(layers)
    if not any(_section(layer, "method").get("name") for _, layer in layers[2:]):
        raise ConfigError(f"method {method}: has no method.name, which tells its runs from others'; add one")
    config = _with_seams(merged(ExperimentConfig, layers, remedy="hacpo show lists all fields"), layers)
    config = _with_problem_sets(config, [layer for _, layer in layers])
    typed = [*_typed_names(override_layer), *_typed_names(entry)]
    validate(config, overrides=typed)
    return config


def _section(layer: DictConfig, *names: str) -> DictConfig:
    """A layer's section, empty where it has none, or something else, which merging will refuse."""
    for name in names:
        layer = layer.get(name)
        if not isinstance(layer, DictConfig):
            return OmegaConf.create()
    return layer


def _check_moved(layers: Sequence[tuple[str, DictConfig]]) -> None:
    """Name the new place of fields that earlier versions had elsewhere."""
    for source, layer in layers:
        for name in _typed_names(layer):
            section, _, field = name.rpartition(".")
            target = _MOVED.get(name) or _MOVED.get(section)
            if target is not None:
                target = target if name in _MOVED else f"{target}.{field}"
                raise ConfigError(f"{name} (in {source}): the field is {target} now; rename it")


def _with_seams(config: ExperimentConfig, layers: Sequence[tuple[str, DictConfig]]) -> ExperimentConfig:
    """The same with the dataclass that is named for each seam of the method, filled from the layers."""
    found: dict[str, Any] = {seam: _seam(seam, layers) for seam in SEAMS}
    return replace(config, method=replace(config.method, **found))


def _seam(seam: str, layers: Sequence[tuple[str, DictConfig]]) -> Seam:
    """One seam's implementation.

    A layer below the one that names the implementation may set fields of another one: a pair has the clip of GSPO's
    ratios, whatever the method.
    """
    for source, layer in layers:
        given = _section(layer, "method").get(seam)
        if given is not None and not isinstance(given, DictConfig):
            raise ConfigError(
                f"method.{seam} (in {source}): got {given!r}, expected a mapping; write method.{seam}.name={given}"
            )
    sections = [(source, _section(layer, "method", seam)) for source, layer in layers]
    named = [place for place, (_, section) in enumerate(sections) if section.get("name")]
    if not named:
        raise ConfigError(f"method.{seam}.name: got none, expected one of {', '.join(SHIPPED[seam])}; add it")
    kind = find(seam, str(sections[named[-1]][1].get("name")))
    known = {field.name for field in fields(kind)}
    of_others = {field.name for other in SHIPPED[seam].values() for field in fields(other)}
    for place, (source, section) in enumerate(sections):
        for name in [name for name in map(str, section) if name not in known]:
            if place >= named[-1] or name not in of_others:
                names = ", ".join(sorted(known - {"name"})) or "none"
                chosen = sections[named[-1]][1].get("name")
                raise ConfigError(
                    f"method.{seam}.{name} (in {source}): {chosen} has no such field, it has {names}; leave it out"
                )
            section.pop(name)
    return merged(kind, sections, remedy=f"see method.{seam} of hacpo show")  # type: ignore[no-any-return]


def _check_agent_overrides(override_layer: DictConfig, pair: DictConfig) -> None:
    """An override may change an agent and not add one."""
    declared = [str(name) for name in _section(pair, "pair", "agents")]
    for name in map(str, _section(override_layer, "pair", "agents")):
        if name not in declared:
            raise ConfigError(f"pair.agents.{name}: the pair has no such agent, it has {', '.join(declared)}")


def _with_problem_sets(config: ExperimentConfig, layers: Sequence[DictConfig]) -> ExperimentConfig:
    """The same with a declaration of each training set and benchmark that is named, and their names without paths."""
    data, evaluate = config.data, config.evaluate
    sets = _by_name("data.train", data.train)
    benchmarks = _by_name("evaluate", [*evaluate.during, *evaluate.final])
    return replace(
        config,
        data=replace(
            data,
            train=list(sets),
            sets={name: _problem_set(TrainSetConfig, "data.sets", given, layers) for name, given in sets.items()},
        ),
        evaluate=replace(
            evaluate,
            during=[file_stem(given) for given in evaluate.during],
            final=[file_stem(given) for given in evaluate.final],
            benchmarks={name: benchmark(given, layers) for name, given in benchmarks.items()},
        ),
    )


def _by_name(field: str, names: Sequence[str]) -> dict[str, str]:
    """Each of these, a name or the path of a YAML file, by its name."""
    named: dict[str, str] = {}
    for given in names:
        if Path(named.setdefault(file_stem(given), given)).absolute() != Path(given).absolute():
            raise ConfigError(f"{field}: {named[file_stem(given)]} and {given} have one name; rename a file")
    return named


def file_stem(name: str) -> str:
    """Name of a declaration: the name as it is given, or the stem of its YAML file."""
    return Path(name).stem if Path(name).suffix in (".yaml", ".yml") else name


def benchmark(name: str, layers: Sequence[DictConfig] = ()) -> BenchmarkConfig:
    """The declaration of one benchmark.

    Args:
        name: one in `experiments/benchmarks`, path of a YAML file, or a name that a layer declares.
        layers: settings of an experiment; what they say under `evaluate.benchmarks.<name>` wins, the last one most.

    Raises:
        ConfigError: nobody declares it, or its file has an unknown field or a value of the wrong kind.
    """
    return _problem_set(BenchmarkConfig, "evaluate.benchmarks", name, layers)


def _problem_set(schema: type[_ProblemSet], section: str, name: str, layers: Sequence[DictConfig]) -> _ProblemSet:
    """A declaration: its own file < what the layers say about it."""
    kind = {TrainSetConfig: "train_set", BenchmarkConfig: "benchmark"}[schema]
    parts = [OmegaConf.select(layer, f"{section}[{file_stem(name)}]") for layer in layers]
    parts = [part for part in parts if part is not None]
    if name in available(kind) or file_stem(name) != name or not parts:
        parts.insert(0, read_declaration(kind, name))
    layers_of_it = [(f"{kind} {name}", part) for part in parts]
    declared: _ProblemSet = merged(schema, layers_of_it, remedy="fix the declaration")
    return declared


def merged(schema: type, layers: Sequence[tuple[str, DictConfig]], *, remedy: str) -> Any:
    """A filled configuration: the schema's defaults < each layer, the last one most.

    Args:
        schema: a dataclass.
        layers: where each comes from, in words, and what it says.
        remedy: for a field that is unknown or of the wrong kind.

    Raises:
        ConfigError: such a field, or ${...} that names nothing.
    """
    tree = OmegaConf.structured(schema)
    for source, layer in layers:
        try:
            tree = OmegaConf.unsafe_merge(tree, copy.deepcopy(layer))  # which takes the copy's nodes over
        except OmegaConfBaseException as error:
            raise ConfigError(f"{_key(error)} (in {source}): {first_line(error)}; {remedy}") from error
        except TypeError as error:
            raise ConfigError(
                f"{source}: a list where a mapping belongs, or the reverse ({error}); {remedy}"
            ) from error
    try:
        return OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:  # missing, ${...} that names nothing, or a value of the wrong kind
        where = f" (in {layers[0][0]})" if len(layers) == 1 else ""
        raise ConfigError(f"{_key(error)}{where}: {first_line(error)}; fix the value") from error


def _key(error: OmegaConfBaseException) -> str:
    return getattr(error, "full_key", None) or "a field"


def _typed_names(tree: DictConfig) -> list[str]:
    plain: Any = OmegaConf.to_container(tree)
    return list(flatten(plain))


def load_config(path: Path) -> ExperimentConfig:
    """A resolved configuration that `flows.planning.plans.save_plan` wrote.

    Raises:
        ConfigError: it is missing or does not fit this version's schema.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not there; hacpo show lists the experiments")
    plain: Any = OmegaConf.to_container(_read(path))
    for sections, name in _RETIRED:
        found = plain
        for section in sections.split("."):
            found = found.get(section) if isinstance(found, dict) else None
        if isinstance(found, dict):
            found.pop(name, None)
    layers = [(str(path), OmegaConf.create(plain))]
    _check_moved(layers)
    config = _with_seams(merged(ExperimentConfig, layers, remedy="it does not fit this version of hacpo"), layers)
    validate(config)
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """The resolved configuration as YAML."""
    return yaml.safe_dump(as_dict(config), sort_keys=False, allow_unicode=True)
