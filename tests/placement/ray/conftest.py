"""What tests of agents in Ray's actors share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flows.planning.plans import Plan
from flows.records.watcher import QuietWatcher
from flows.runs.experiment import run_experiment
from hacpo_core.phases.runner import DirectRunner
from tests.experiments_outcome import outcome

RAY = ("placement.kind=ray", "engine.num_threads=1")


@pytest.fixture(autouse=True)
def nothing_left_behind(leftovers: Callable[[], list[str]]) -> Iterator[None]:
    """Every test ends all that it started, also what is no child of this process any more."""
    yield
    assert not leftovers()


def run(planned: Plan) -> dict[str, Any]:
    """Train an experiment to its end; returns its outcome."""
    run_experiment(planned, DirectRunner(), QuietWatcher())
    return outcome(planned)
