"""Shapes of the paper's models, from their config.json files, to calculate memory without the weights."""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files

from flows.planning.memory import ModelShape, model_shape
from hacpo_core.config import ExperimentConfig


@cache
def published_models() -> dict[str, dict[str, str]]:
    """Shape fields of each model of the paper, by hub name."""
    text = (files("experiments") / "published" / "model_shapes.csv").read_text(encoding="utf-8")
    return {row.pop("model"): row for row in csv.DictReader(text.splitlines())}


@cache
def published_shape(name: str) -> ModelShape:
    """Shape of a model of the paper."""
    from transformers import AutoConfig  # importing takes two seconds, and other models do not need it

    fields = dict(published_models()[name])
    kind = fields.pop("model_type")
    return model_shape(AutoConfig.for_model(kind, **{field: json.loads(value) for field, value in fields.items()}))


def published_shapes(config: ExperimentConfig) -> dict[str, ModelShape]:
    """Shapes of an experiment's agents that are models of the paper, by agent name."""
    agents = config.pair.agents.items()
    return {k: published_shape(agent.path) for k, agent in agents if agent.path in published_models()}
