"""Build one validated configuration from YAML declarations and command-line overrides."""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flows.planning.declarations import available, file_stem, read_declaration, read_yaml, section_of, yaml_problem
from hacpo_core.config import (
    PARTS,
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
from hacpo_core.methods.base import MethodPart
from hacpo_core.methods.registry import SHIPPED, find

_ProblemSet = TypeVar("_ProblemSet", bound=ProblemSetConfig)

Layer = tuple[str, DictConfig]
"""where settings come from, for messages, and the settings"""
_AGENT_FIELDS = "|".join(field.name for field in fields(AgentConfig))
_AGENT_FIELD = re.compile(rf"^pair\.agents\.(?P<agent>[^\[\]=]+)\.(?P<field>({_AGENT_FIELDS})(\.[^=]*)?)=")


def _read_overrides(overrides: Sequence[str]) -> DictConfig:
    for override in overrides:
        name, equals, _ = override.partition("=")
        if not equals or not name:
            raise ConfigError(f"{override!r}: expected section.field=value, for example rollout.num_samples=4")
    # OmegaConf would split qwen3-1.7b at its dot; brackets keep an agent's name whole.
    bracketed = [_AGENT_FIELD.sub(r"pair.agents[\g<agent>].\g<field>=", _quoted(entry), count=1) for entry in overrides]
    try:
        return OmegaConf.from_dotlist(bracketed)
    except (yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"cannot read {' '.join(overrides)!r}: {yaml_problem(error)}; quote the value") from error


def _quoted(override: str) -> str:
    """The override, with the value of a template or folder quoted, whose braces and # YAML would parse."""
    name, _, value = override.partition("=")
    is_text = name.endswith((".chat_template", ".template", ".system", ".runs_dir"))
    is_plain = value not in ("", "null") and value[:1] not in ("'", '"')
    return f"{name}={json.dumps(value)}" if is_text and is_plain else override


def compose(
    pair: str, method: str, *, hardware: str = "cpu", entry: Any = None, overrides: Sequence[str] = ()
) -> ExperimentConfig:
    """Merge all layers into one configuration and validate it.

        base < conformance < pair < method < hardware < grid entry < command line (the last one wins)

    Args:
        pair, method, hardware: name of a declaration in `experiments/`, or path of a YAML file.
        entry: settings of a grid entry, a nested mapping.
        overrides: each "section.field=value".

    Raises:
        ConfigError: an unknown name or field, a value of the wrong type, a contradiction, or a field without effect.
    """
    override_layer = _read_overrides(overrides)
    entry = OmegaConf.create(entry or {})
    layers = [
        ("experiments/base.yaml", read_yaml(files("experiments") / "base.yaml")),
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
    if not any(section_of(layer, "method").get("name") for _, layer in layers[2:]):
        raise ConfigError(f"method {method}: got no method.name, which identifies the method's runs; add one")
    config = _with_parts(merged(ExperimentConfig, layers, remedy="see hacpo fields, or hacpo fields WORD"), layers)
    config = _with_templates(_with_problem_sets(config, [layer for _, layer in layers]))
    explicit = [*_field_names(override_layer), *_field_names(entry)]
    validate(config, overrides=explicit)
    return config


def _with_parts(config: ExperimentConfig, layers: Sequence[Layer]) -> ExperimentConfig:
    """The configuration with the chosen implementation of each part of the method."""
    parts: dict[str, Any] = {part: _part(part, layers) for part in PARTS}
    return replace(config, method=replace(config.method, **parts))


def _part(part: str, layers: Sequence[Layer]) -> MethodPart:
    """One part's implementation, with its fields filled from the layers.

    A layer below the one that names the implementation may set fields of a different implementation: a pair sets the
    clip range of GSPO's ratios for all methods. Such fields are ignored.
    """
    sections = _sections(layers, part)
    naming_layers = [index for index, (_, section) in enumerate(sections) if section.get("name")]
    if not naming_layers:
        raise ConfigError(f"method.{part}.name: got none, expected one of {', '.join(SHIPPED[part])}; add it")
    last = naming_layers[-1]
    name = str(sections[last][1].get("name"))
    kind = find(part, name)
    own_fields = {field.name for field in fields(kind)}
    fields_of_others = {field.name for other in SHIPPED[part].values() for field in fields(other)}
    for index, (source, section) in enumerate(sections):
        for unknown in [field for field in map(str, section) if field not in own_fields]:
            if index >= last or unknown not in fields_of_others:
                names = ", ".join(sorted(own_fields - {"name"})) or "none"
                raise ConfigError(
                    f"method.{part}.{unknown} (in {source}): {name} has no such field, it has {names}; remove it"
                )
            section.pop(unknown)
    return merged(kind, sections, remedy=f"see method.{part} of hacpo show")  # type: ignore[no-any-return]


def _sections(layers: Sequence[Layer], part: str) -> list[Layer]:
    """The part's section of each layer.

    Raises:
        ConfigError: it is something else than a mapping.
    """
    for source, layer in layers:
        value = section_of(layer, "method").get(part)
        if value is not None and not isinstance(value, DictConfig):
            field = f"method.{part}"
            raise ConfigError(f"{field} (in {source}): got {value!r}, expected a mapping; write {field}.name={value}")
    return [(source, section_of(layer, "method", part)) for source, layer in layers]


def _check_agent_overrides(override_layer: DictConfig, pair: DictConfig) -> None:
    """Raise a ConfigError if an override names an agent that the pair does not have."""
    agent_names = [str(name) for name in section_of(pair, "pair", "agents")]
    for name in map(str, section_of(override_layer, "pair", "agents")):
        if name not in agent_names:
            raise ConfigError(
                f"pair.agents.{name}: the pair has no such agent, it has {', '.join(agent_names)}; name one of them"
            )


def _with_templates(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration with the chat templates that were named by a file: a text without a brace."""
    agents = dict(config.pair.agents)
    for name, agent in agents.items():
        if agent.chat_template is not None and "{" not in agent.chat_template:
            file = Path(agent.chat_template).absolute()
            try:
                template = file.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"pair.agents.{name}.chat_template: {file} cannot be read ({first_line(error)}); "
                    "set it to a Jinja template, or to a file that holds one"
                ) from error
            agents[name] = replace(agent, chat_template=template)
    return replace(config, pair=replace(config.pair, agents=agents))


def _with_problem_sets(config: ExperimentConfig, layers: Sequence[DictConfig]) -> ExperimentConfig:
    """The configuration with the declarations of its training sets and benchmarks; paths are replaced by names."""
    data, evaluate = config.data, config.evaluate
    sets = _by_name("data.train", data.train)
    benchmarks = _by_name("evaluate", [*evaluate.during, *evaluate.final])
    return replace(
        config,
        data=replace(
            data,
            train=list(sets),
            sets={
                name: _problem_set(TrainSetConfig, "data.sets", declaration, layers)
                for name, declaration in sets.items()
            },
        ),
        evaluate=replace(
            evaluate,
            during=[file_stem(declaration) for declaration in evaluate.during],
            final=[file_stem(declaration) for declaration in evaluate.final],
            benchmarks={name: benchmark(declaration, layers) for name, declaration in benchmarks.items()},
        ),
    )


def _by_name(field: str, names: Sequence[str]) -> dict[str, str]:
    """Map the name of each declaration to how it was given, a name or the path of a YAML file."""
    declarations: dict[str, str] = {}
    for declaration in names:
        first = declarations.setdefault(file_stem(declaration), declaration)
        if Path(first).resolve() != Path(declaration).resolve():
            raise ConfigError(f"{field}: {first} and {declaration} have the same name; rename one of them")
    return declarations


def benchmark(name: str, layers: Sequence[DictConfig] = ()) -> BenchmarkConfig:
    """The declaration of one benchmark.

    Args:
        name: one in `experiments/benchmarks`, path of a YAML file, or a name declared in a layer.
        layers: settings of an experiment; those under `evaluate.benchmarks.<name>` override the file, the last wins.

    Raises:
        ConfigError: it is not declared, or its declaration has an unknown field or a value of the wrong type.
    """
    return _problem_set(BenchmarkConfig, "evaluate.benchmarks", name, layers)


def _problem_set(schema: type[_ProblemSet], section: str, name: str, layers: Sequence[DictConfig]) -> _ProblemSet:
    """A declaration: its file, overridden by the layers."""
    kind, field = ("train_set", "data.train") if schema is TrainSetConfig else ("benchmark", "evaluate")
    parts = [OmegaConf.select(layer, f"{section}[{file_stem(name)}]") for layer in layers]
    parts = [part for part in parts if part is not None]
    if name in available(kind) or file_stem(name) != name or not parts:
        own = {str(own) for layer in layers for own in section_of(layer, *section.split("."))}
        parts.insert(0, read_declaration(kind, name, field=field, own=sorted(own)))
    problem_set: _ProblemSet = merged(
        schema, [(f"{kind} {name}", part) for part in parts], remedy="fix the declaration"
    )
    return problem_set


def merged(schema: type, layers: Sequence[Layer], *, remedy: str) -> Any:
    """An instance of `schema` with its defaults overridden by each layer in turn.

    Args:
        schema: a dataclass.
        layers: description of the source and content of each layer.
        remedy: end of the message about an unknown field or a value of the wrong type.

    Raises:
        ConfigError: such a field or value, or a ${...} that refers to nothing.
    """
    tree: Any = deepcopy(_defaults(schema))
    for source, layer in layers:
        try:
            tree = OmegaConf.unsafe_merge(tree, deepcopy(layer))
        except (OmegaConfBaseException, TypeError, OverflowError) as error:
            raise ConfigError(f"{_key(error)} (in {source}): {first_line(error)}; {remedy}") from error
    try:
        return OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:  # a missing value, ${...} that refers to nothing, or a wrong type
        where = f" (in {layers[0][0]})" if len(layers) == 1 else ""
        raise ConfigError(f"{_key(error)}{where}: {first_line(error)}; fix the value") from error


@cache
def _defaults(schema: type) -> Any:
    """The schema with its defaults; a copy takes a sixth of the time of making it."""
    return OmegaConf.structured(schema)


def _key(error: Exception) -> str:
    return str(getattr(error, "full_key", None) or "a field")


def _field_names(tree: DictConfig) -> list[str]:
    plain: Any = OmegaConf.to_container(tree)
    return list(flatten(plain))


def load_config(path: Path) -> ExperimentConfig:
    """Load a resolved configuration written by `flows.planning.plans.save_plan`.

    Raises:
        ConfigError: it is missing or does not fit this version's schema.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; hacpo show lists the experiments")
    plain: Any = OmegaConf.to_container(read_yaml(path))
    layers = [(str(path), OmegaConf.create(plain))]
    config = _with_parts(merged(ExperimentConfig, layers, remedy="it does not fit this version of hacpo"), layers)
    validate(config)
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """The resolved configuration as YAML."""
    return yaml.safe_dump(as_dict(config), sort_keys=False, allow_unicode=True)
