"""Declarations: YAML files of `experiments/`, or a user's own by path."""

from collections.abc import Collection
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hacpo_core.config import PARTS
from hacpo_core.errors import ConfigError, did_you_mean, first_line

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
    """Names of the declarations of a kind (a key of `DECLARATION_FOLDERS`).

    Files that begin with "_" are bases for `extends` and are not listed.
    """
    names = [item.name for item in (files("experiments") / DECLARATION_FOLDERS[kind]).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and not name.startswith("_"))


def read_declaration(
    kind: str, name: str, *, field: str = "", own: Collection[str] = (), above: tuple[Any, ...] = ()
) -> DictConfig:
    """Read a declaration; with `extends: <name>` its fields override those of another declaration of its kind.

    Files and models that it names are looked for beside it, then in the working directory.

    Args:
        kind: key of `DECLARATION_FOLDERS`.
        name: name of a declaration, or path of a YAML file.
        field: that holds the name, for messages; default: the kind.
        own: names that may stand there, too.
        above: files that extend this one, directly or indirectly.

    Raises:
        ConfigError: there is no such declaration, it is not a YAML mapping, or it extends itself.
    """
    path: Any = Path(name)
    if not is_file_name(name):
        path = files("experiments") / DECLARATION_FOLDERS[kind] / f"{name}.yaml"
    if not path.is_file():
        if is_file_name(name):
            hint = did_you_mean(path.stem, [file.stem for file in path.parent.glob("*.yaml")], ending=".yaml") or (
                "correct the path, which is looked for beside the file that names it, then in the working directory"
            )
            raise ConfigError(f"{field or kind}: there is no file {path.absolute()}; {hint}")
        names = [*own, *available(kind)]
        hint = did_you_mean(name, names)
        raise ConfigError(
            f"{field or kind}: got {name!r}, expected one of {', '.join(names)} or a path to a YAML file"
            f"{'; ' if hint else ''}{hint}"
        )
    path = path.resolve() if isinstance(path, Path) else path
    if path in above:
        raise ConfigError(f"{path} extends itself; name another {kind} under extends, or remove the line")
    tree = read_yaml(path)
    if isinstance(path, Path):
        tree = OmegaConf.create(with_paths_beside(OmegaConf.to_container(tree), path.parent))
    base = tree.pop("extends", None)
    if base is None:
        return tree
    below = read_declaration(kind, str(base), above=(*above, path))
    for part in PARTS:  # drop inherited fields of an implementation that this file replaces
        name, inherited = section_of(tree, "method", part).get("name"), section_of(below, "method", part)
        if name is not None and inherited.get("name") not in (None, name):
            below["method"][part] = {}
    return OmegaConf.merge(below, tree)  # type: ignore[return-value]


def read_yaml(path: Any) -> DictConfig:
    """A YAML file as a mapping.

    Raises:
        ConfigError: it is not YAML, or not a mapping.
    """
    try:
        tree = deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {yaml_problem(error)}; fix it") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path}: expected a YAML mapping of sections, got a list or a scalar; rewrite it")
    return tree


@lru_cache(256)  # a grid reads the same files for each of its cells
def _parsed(text: str) -> object:
    return OmegaConf.create(text)


def yaml_problem(error: Exception) -> str:
    """One line about a YAML error, with its place if the parser knows it."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return first_line(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', None) or first_line(error)}"


def section_of(layer: DictConfig, *names: str) -> DictConfig:
    """A layer's section; empty if it has none or if it is not a mapping, which merging rejects later."""
    for name in names:
        layer = layer.get(name)
        if not isinstance(layer, DictConfig):
            return OmegaConf.create()
    return layer


def is_file_name(name: str) -> bool:
    """Whether a name is the path of a YAML file, and not that of a declaration in `experiments/`."""
    return Path(name).suffix in (".yaml", ".yml")


def file_stem(name: str) -> str:
    """Name of a declaration: the name itself, or the stem of its YAML file."""
    return Path(name).stem if is_file_name(name) else name


def with_paths_beside(value: Any, folder: Path) -> Any:
    """The value with each relative path that exists in `folder` replaced by its path there.

    Paths are YAML files, Jinja templates, models under `path` and data under `directory`.

    Args:
        value: a text, or a list or mapping of such values; other values are returned as they are.
        folder: of the file that the value comes from.
    """
    if isinstance(value, dict):
        named = {key: folder / str(value[key]) for key in ("path", "directory") if value.get(key)}
        beside = {key: str(path) for key, path in named.items() if path.exists()}
        return {key: with_paths_beside(item, folder) for key, item in value.items()} | beside
    if isinstance(value, list):
        return [with_paths_beside(item, folder) for item in value]
    is_path = isinstance(value, str) and (is_file_name(value) or value.endswith(".jinja"))
    if is_path and (folder / value).is_file():
        return str(folder / value)
    return value
