"""Folders of tiny models; needs no torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hacpo_core.config import TinyModelConfig, digest_of

RECIPE_VERSION = 2
"""Raise it when the same configuration would give a different model, so that old caches are not used."""


def tiny_model_folder(config: TinyModelConfig, cache: Path) -> Path:
    """Folder of the model with this configuration, which may not exist yet."""
    digest = digest_of({"recipe": RECIPE_VERSION, **asdict(config)})
    return cache / f"{config.family}-{config.tokenizer}-{digest[:10]}"
