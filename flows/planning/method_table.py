"""All shipped methods and their parts, from their files and docstrings, for `hacpo methods`."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from flows.planning.compose import compose
from flows.planning.declarations import DECLARATION_FOLDERS, available, read_declaration, read_yaml
from flows.planning.reference import Entry, entries_named
from hacpo_core.config import PARTS, flatten
from hacpo_core.config.fields import declaration
from hacpo_core.methods.registry import SHIPPED


def method_entries() -> list[Entry]:
    """An entry for each file of experiments/methods: its two comments, its parts and what it sets of them."""
    return [_method_entry(name) for name in available("method")]


def part_entries() -> list[Entry]:
    """An entry for each shipped part: its docstring, with the equation and the source, and its fields."""
    return [_part_entry(part, name) for part in PARTS for name in SHIPPED[part]]


def entries_of(name: str) -> list[Entry]:
    """The entry of a method with those of its parts, or of a part.

    Raises:
        ConfigError: there is none with this name.
    """
    if name not in available("method"):
        return entries_named([*part_entries(), *method_entries()], name)
    method = compose("tiny", name).method
    return [_method_entry(name), *(_part_entry(part, getattr(method, part).name) for part in PARTS)]


def _method_entry(name: str) -> Entry:
    file = files("experiments") / DECLARATION_FOLDERS["method"] / f"{name}.yaml"
    about, source = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
    declared = read_declaration("method", name)["method"]  # to compose and check all methods takes seconds
    base = read_yaml(files("experiments") / "base.yaml")["method"]
    method: Any = OmegaConf.merge(base, declared)
    parts = ", ".join(f"{part} {method[part].name}" for part in PARTS)
    tree: Any = OmegaConf.to_container(declared)
    settings = ", ".join(
        f"method.{field}={value}"
        for field, value in flatten(tree).items()
        if "." in field and not field.endswith(".name")
    )
    note = f"{'shares rollouts' if tree.get('shares_rollouts', True) else 'own rollouts'}; {parts}"
    return Entry("methods", name, note, (about, source, *([f"Sets {settings}"] if settings else [])))


def _part_entry(part: str, name: str) -> Entry:
    implementation = SHIPPED[part][name]
    fields = [field for field in dataclasses.fields(implementation) if field.name != "name"]
    lines = [f"{field.name}: {declaration(field).about} (default {field.default!r})" for field in fields]
    return Entry(
        part, name, f"{part}; {implementation.__module__}", (inspect.cleandoc(implementation.__doc__ or ""), *lines)
    )
