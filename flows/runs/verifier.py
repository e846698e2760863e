"""The configured verifier, and gold answers that it cannot read, so that other spellings of them are unscored."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from hacpo_core.config import ExperimentConfig
from hacpo_core.config.problems import REASONING_END
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json, write_json
from hacpo_core.records import Equality, Problem
from hacpo_core.verify.pool import VerifierPool

MEMORY_MB = 2048
"""memory limit of a worker of the verifier, MiB"""
GOLDS_FILE = "unreadable_golds.json"
"""the gold answers of an experiment that cannot be read, by data set"""
_NUM_SHOWN = 3
_log = logging.getLogger(__name__)


def verifier_pool(config: ExperimentConfig, equality: Equality) -> VerifierPool:
    """A pool of verifier workers with the configured limits and this equality rule."""
    verifier = config.verifier
    return VerifierPool(
        num_workers=verifier.num_workers,
        timeout_s=verifier.timeout_s,
        memory_mb=MEMORY_MB,
        style=verifier.style,
        equality=equality,
        reasoning_end="" if verifier.answer_after_reasoning == "none" else REASONING_END,
        requires_reasoning=verifier.answer_after_reasoning == "required",
    )


def check_golds(root: Path, sets: Mapping[str, Sequence[Problem]], pool: VerifierPool) -> None:
    """Write an experiment's unreadable gold answers into its folder and warn of them; a resumed run does not ask again.

    Raises:
        VerificationError: no worker can start.
    """
    if (root / GOLDS_FILE).is_file():
        return
    golds_by_set = {name: pool.unreadable(problem.gold.answer for problem in sets[name]) for name in sets}
    golds_by_set = {name: golds for name, golds in golds_by_set.items() if golds}
    write_json(root / GOLDS_FILE, golds_by_set)
    for name, golds in golds_by_set.items():
        examples = ", ".join(map(repr, golds[:_NUM_SHOWN])) + (", ..." if len(golds) > _NUM_SHOWN else "")
        message = "%s: %d gold answers cannot be read, so answers spelled otherwise are unscored: %s"
        _log.warning(message, name, len(golds), examples)


def known_unreadable_golds(root: Path) -> dict[str, list[str]]:
    """What `check_golds` wrote; empty if it wrote nothing yet, or if the file is damaged (logged)."""
    try:
        return dict(read_json(root / GOLDS_FILE)) if (root / GOLDS_FILE).is_file() else {}
    except (StoreError, ValueError, TypeError) as error:
        _log.warning("%s is damaged: %s", root / GOLDS_FILE, error)
        return {}
