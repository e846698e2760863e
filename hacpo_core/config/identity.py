"""An experiment's id: a hash of every field that can change its results, and of nothing else."""

from collections.abc import Mapping
from typing import Any

from hacpo_core.config.fields import fields_of
from hacpo_core.config.schema import ExperimentConfig, digest_of

ALGORITHM_VERSION = 6
"""part of every id; raised whenever the same fields give different results (docs/decisions.md#experiment-id)"""


def inert_fields(config: ExperimentConfig) -> dict[str, str]:
    """Dotted names of fields that cannot change this run's results, each with the reason."""
    return {field.name: field.inert for field in fields_of(config) if field.inert is not None}


def identity_fields(config: ExperimentConfig) -> dict[str, Any]:
    """Fields by dotted name that can change this run's results.

    Model folders and data files enter the id by the digests of their contents, not by their paths.
    """
    return {field.name: field.value for field in fields_of(config) if field.is_identity and field.inert is None}


def experiment_id(config: ExperimentConfig, fingerprints: Mapping[str, str]) -> str:
    """Id of the experiment: a readable part, and a hash of everything that can change its results.

    Args:
        config: a valid configuration.
        fingerprints: content digest of every model folder and data file that the configuration names by path.

    Returns:
        "<pair>-<method>-s<seed>-<8 hex digits>".
    """
    contents = {
        "version": ALGORITHM_VERSION,
        "fields": identity_fields(config),
        "agents": list(config.pair.agents),
        "contents": dict(fingerprints),
    }
    return f"{config.pair.name}-{config.method.name}-s{config.seed}-{digest_of(contents)[:8]}"
