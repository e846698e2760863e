"""Shapes of the paper's models, as their config.json files say: memory can be reckoned without the weights."""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files

from transformers import AutoConfig

from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.memory import ModelShape, model_shape


@cache
def model_shapes() -> dict[str, ModelShape]:
    """Shape of each model of the paper, by its hub name."""
    text = (files(__package__) / "model_shapes.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        name, kind = row.pop("model"), row.pop("model_type")
        fields = {field: json.loads(value) for field, value in row.items()}
        found[name] = model_shape(AutoConfig.for_model(kind, **fields))
    return found


def published_shapes(config: ExperimentConfig) -> dict[str, ModelShape]:
    """Shapes of those of an experiment's agents that are models of the paper, by the agents' names."""
    known = model_shapes()
    return {k: known[agent.path] for k, agent in config.pair.agents.items() if agent.path in known}
