"""Where tiny models lie; needs no torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hacpo_core.config import TinyModelConfig, digest_of

RECIPE_VERSION = 1
"""Raise when the same configuration would give another model: old caches are then left alone."""


def tiny_model_folder(config: TinyModelConfig, cache: Path) -> Path:
    """Where the model of that configuration lies once it is made."""
    digest = digest_of({"recipe": RECIPE_VERSION, **asdict(config)})
    return cache / f"{config.family}-{config.tokenizer}-{digest[:10]}"
