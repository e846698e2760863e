"""Shapes of the paper's models, as their config.json files say: memory can be reckoned without the weights."""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files

from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.models.memory import ModelShape, model_shape


@cache
def published_models() -> dict[str, dict[str, str]]:
    """Fields of each model of the paper by its hub name."""
    text = (files(__package__) / "model_shapes.csv").read_text(encoding="utf-8")
    return {row.pop("model"): row for row in csv.DictReader(text.splitlines())}


@cache
def published_shape(name: str) -> ModelShape:
    """Shape of a model of the paper."""
    from transformers import AutoConfig  # two seconds, which plans of other models do without

    fields = dict(published_models()[name])
    kind = fields.pop("model_type")
    return model_shape(AutoConfig.for_model(kind, **{field: json.loads(value) for field, value in fields.items()}))


def published_shapes(config: ExperimentConfig) -> dict[str, ModelShape]:
    """Shapes of those of an experiment's agents that are models of the paper, by the agents' names."""
    agents = config.pair.agents.items()
    return {k: published_shape(agent.path) for k, agent in agents if agent.path in published_models()}
