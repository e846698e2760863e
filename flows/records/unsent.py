"""Which experiments have something that MLflow lacks, from the small file beside each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.records.files import experiments_dir
from flows.records.mlflow_address import STATE_FILE
from hacpo_core.errors import StoreError
from hacpo_core.files import read_json, write_json
from hacpo_core.store.lock import is_locked


def mark_unsent(root: Path) -> None:
    """Record that the experiment has something to send, before the store is asked for anything."""
    write_json(root / STATE_FILE, {**_read(root), "is_open": True})


def mark_changed(root: Path) -> None:
    """Record that something changed, unless a process trains the experiment: that process sends it."""
    if (root / STATE_FILE).is_file() and not is_locked(root):
        mark_unsent(root)


def has_unsent(root: Path) -> bool:
    """Whether the experiment has something to send."""
    return bool(_read(root).get("is_open"))


def unsent_experiments(runs_dir: Path) -> list[Path]:
    """Folders of the experiments that have something to send and that no process trains or evaluates."""
    roots = (path.parent for path in experiments_dir(runs_dir).glob(f"*/{STATE_FILE}"))
    return sorted(root for root in roots if has_unsent(root) and not is_locked(root))


def _read(root: Path) -> dict[str, Any]:
    try:
        value = read_json(root / STATE_FILE)
    except StoreError:  # missing or corrupt: the runs are found by their tags, or opened again
        return {}
    return value if isinstance(value, dict) else {}
