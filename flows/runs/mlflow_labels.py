"""Parameters, tags and data sets by which MLflow finds an experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.planning.plans import Plan, data_files
from flows.records.gridfile import read_grids
from flows.records.versions import version_tags
from hacpo_core.config import ExperimentConfig
from hacpo_core.config.fields import fields_of

_SYMBOLS = {
    "α": "method.objective.cross_exponent",
    "floor": "method.objective.cross_floor",
    "δ_step": "method.objective.cross_step",
    "K": "method.estimate.window",
}
"""the paper's symbols for fields of some methods; the floor is 1 - δ"""
SYMBOLS = ("α", "δ", "floor", "δ_step", "K")
"""the symbols, as parameters of those runs in which their fields act"""
_NAMES = ("pair.name", "method.name")
_FORBIDDEN = re.compile(r"[^/\w.\- :]")
"""characters that a key in MLflow may not have"""


def membership(kind: str, name: str) -> str:
    """Tag of what belongs to a grid or pair; its value is "true"."""
    return f"{kind}.{_FORBIDDEN.sub('-', name)}"


def parameters(config: ExperimentConfig) -> dict[str, Any]:
    """Method, models and seed, the paper's symbols for fields that act, and what differs from the schema's defaults.

    Of the latter only fields that can change results, and no names. Grids and pairs can change, which a parameter
    cannot: they are tags.
    """
    acting = {field.name: field for field in fields_of(config) if field.inert is None}
    symbols = {symbol: acting[name].value for symbol, name in _SYMBOLS.items() if name in acting}
    if "floor" in symbols:
        symbols["δ"] = round(1.0 - symbols["floor"], 12)
    names = {"method": config.method.name, "model_pair": " + ".join(config.pair.agents), "seed": config.seed}
    changed_fields = {name: field.value for name, field in acting.items() if field.is_identity and not field.is_default}
    return {**names, **symbols, **{name: value for name, value in changed_fields.items() if name not in _NAMES}}


def tags(plan: Plan) -> dict[str, str]:
    """Pair, method and seed, a tag for each grid and pair that the experiment belongs to, and versions.

    A grid's training of one agent belongs to the grid's pairs, not to one of its own.
    """
    config = plan.config
    grids = read_grids(Path(config.runtime.runs_dir))
    cells = [(grid.name, cell) for grid in grids for cell in grid.cells if cell.experiment == plan.id]
    pairs = sorted({cell.pair for _, cell in cells}) or [config.pair.name]
    members = [membership("pair", pair) for pair in pairs] + [membership("grid", grid) for grid, _ in cells]
    agent = {"agent": next(iter(config.pair.agents))} if len(config.pair.agents) == 1 else {}
    return {
        "pair": ", ".join(pairs),
        "method": config.method.name,
        "seed": str(config.seed),
        **dict.fromkeys(members, "true"),
        **agent,
        **version_tags(),
    }


def datasets(config: ExperimentConfig) -> Mapping[str, str]:
    """Name and digest of each data set, by context: "train <name>" or "benchmark <name>"."""
    contexts = [
        *(f"train {name}" for name in config.data.train),
        *(f"benchmark {name}" for name in config.evaluate.benchmarks),
    ]
    files = {context: f"{path}@{digest}" for context, (path, digest) in data_files(config).items()}
    return {context: files.get(context, "arithmetic@embedded") for context in contexts}
