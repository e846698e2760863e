"""The state of an experiment, from its folder alone: what a table, a page and the reconciler go by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.records.failures import Failure, read_failure
from flows.records.progress import Progress, read_progress
from hacpo_core.errors import StoreError
from hacpo_core.store.files import read_json
from hacpo_core.store.lock import is_locked

CONFIG_FILE = "config.yaml"
RESULT_FILE = "result.json"
"""the result table; it makes an experiment complete, unless a power cut has torn it"""
STATES = ("done", "running", "failed", "missing", "unavailable")


@dataclass(frozen=True, slots=True)
class Standing:
    """One of STATES, how far it is, and why it failed; "unavailable" only a planner can say."""

    state: str
    progress: Progress | None
    failure: Failure | None

    @property
    def reason(self) -> str:
        """One line for a table: why it is not done, or how far it is."""
        if self.state == "done":
            return ""
        if self.state == "failed" and self.failure is not None:
            return self.failure.reason
        so_far = f"step {self.progress.step} of {self.progress.num_steps}" if self.progress is not None else ""
        if self.state == "running":
            return so_far or "starts"
        return f"broken off at {so_far}" if so_far else "not run"


def standing_of(root: Path) -> Standing:
    """State of the experiment in this folder, which need not exist."""
    if not root.is_dir():
        return Standing("missing", None, None)
    progress = read_progress(root)
    if _has_result(root):
        return Standing("done", progress, None)
    if is_locked(root):
        return Standing("running", progress, None)
    failure = read_failure(root)
    return Standing("failed" if failure is not None else "missing", progress, failure)


def _has_result(root: Path) -> bool:
    try:
        read_json(root / RESULT_FILE)
    except StoreError:  # there is none, or it is torn
        return False
    return True
