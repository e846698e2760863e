"""From YAML declarations and command-line words to one validated configuration with an id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hacpo_core.config import ExperimentConfig, as_dict, flatten
from hacpo_core.errors import ConfigError
from hacpo_core.validation import validate

_AGENT_FIELD = re.compile(
    r"^pair\.agents\.(?P<agent>[^\[\]=]+)\.(?P<field>path|chat_template|trust_remote_code|tiny\b[^=]*)="
)
KINDS = {"pair": "pairs", "method": "methods", "hardware": "hardware", "conformance": "conformance"}


def available(kind: str) -> list[str]:
    """Names of the declarations of a kind ("pair", "method", "hardware", "conformance")."""
    folder = files("experiments") / KINDS[kind]
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def _declaration(kind: str, name: str) -> Any:
    """A declaration by name, or from a YAML file by path.

    Raises:
        ConfigError: there is none, or it is no YAML mapping.
    """
    path: Any = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = files("experiments") / KINDS[kind] / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{kind}: got {name!r}, expected one of {', '.join(available(kind))} or a path to a YAML file"
        )
    return _read(path)


def _read(path: Any) -> Any:
    try:
        tree = OmegaConf.create(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {str(error).splitlines()[0]}; mend it") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path}: expected a YAML mapping of sections")
    return tree


def _thaw(node: DictConfig) -> None:
    """Let layers be merged into a schema of frozen dataclasses."""
    OmegaConf.set_readonly(node, False)
    for key in node:
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            _thaw(node[key])


def _words(overrides: Sequence[str]) -> DictConfig:
    for word in overrides:
        name, equals, _ = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{word!r}: expected section.field=value, for example rollout.num_samples=4")
    # OmegaConf would split qwen3-1.7b at its dot; brackets keep an agent's name in one piece.
    bracketed = [_AGENT_FIELD.sub(r"pair.agents[\g<agent>].\g<field>=", word, count=1) for word in overrides]
    try:
        return OmegaConf.from_dotlist(bracketed)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {' '.join(overrides)!r}: {str(error).splitlines()[0]}") from error


def compose(
    pair: str, method: str, *, hardware: str = "cpu", entry: Any = None, overrides: Sequence[str] = ()
) -> ExperimentConfig:
    """Base < conformance < pair < method < hardware < grid entry < command line, validated.

    Args:
        pair, method, hardware: name of a declaration in `experiments/`, or path of a YAML file.
        entry: a grid entry's own settings, a nested mapping.
        overrides: "section.field=value" words.

    Raises:
        ConfigError: an unknown name or field, a value of the wrong kind, a contradiction, a field without effect.
    """
    words = _words(overrides)
    entry = OmegaConf.create(entry or {})
    layers = [
        ("experiments/base.yaml", _read(files("experiments") / "base.yaml")),
        *((f"{kind} {name}", _declaration(kind, name)) for kind, name in (("pair", pair), ("method", method))),
        (f"hardware {hardware}", _declaration("hardware", hardware)),
        ("the grid entry", entry),
        ("the command line", words),
    ]
    presets = [layer.get("conformance") for _, layer in layers if layer.get("conformance")]
    layers.insert(1, (f"conformance {presets[-1]}", _declaration("conformance", presets[-1])))
    merged = OmegaConf.structured(ExperimentConfig)
    for source, layer in layers:
        _thaw(merged)
        try:
            merged = OmegaConf.merge(merged, layer)
        except OmegaConfBaseException as error:
            name = getattr(error, "full_key", None) or ""
            raise ConfigError(
                f"{name} (in {source}): {str(error).splitlines()[0]}; hacpo show lists all fields"
            ) from error
    config: ExperimentConfig = OmegaConf.to_object(merged)  # type: ignore[assignment]
    typed = [*_typed_names(words), *_typed_names(entry)]
    validate(config, overrides=typed)
    return config


def _typed_names(tree: DictConfig) -> list[str]:
    plain: Any = OmegaConf.to_container(tree)
    return list(flatten(plain))


def load_config(path: Path) -> ExperimentConfig:
    """A resolved configuration that `save_config` wrote.

    Raises:
        ConfigError: it is missing or does not fit this version's schema.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not there; hacpo show lists the experiments")
    merged = OmegaConf.structured(ExperimentConfig)
    _thaw(merged)
    try:
        config: ExperimentConfig = OmegaConf.to_object(OmegaConf.merge(merged, _read(path)))  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path} does not fit this version of hacpo: {str(error).splitlines()[0]}") from error
    validate(config)
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """The resolved configuration as YAML."""
    return yaml.safe_dump(as_dict(config), sort_keys=False, allow_unicode=True)
