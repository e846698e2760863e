"""A run's configuration as names and values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flows.records.states import CONFIG_FILE
from hacpo_core.config import flatten

_log = logging.getLogger(__name__)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_field_values(root: Path) -> Mapping[str, str]:
    """Value of every field by dotted name; empty if the configuration is missing or unreadable."""
    try:
        tree = yaml.load((root / CONFIG_FILE).read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        _log.info("the configuration in %s is not shown: %s", root, error)
        return {}
    return {name: _text(value) for name, value in flatten(tree).items()} if isinstance(tree, dict) else {}


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
