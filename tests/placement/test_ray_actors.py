"""Agents in Ray's actors: same bits as in one process, also when their processes are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.build import Plan
from flows.display import QuietWatcher
from flows.experiment import run_experiment
from hacpo_core.algorithm import DirectRunner
from hacpo_core.store import StepStore
from tests.experiments_outcome import outcome

pytest.importorskip("ray", reason="the ray extra is not installed: pip install 'hacpo[ray]'")
pytestmark = pytest.mark.ray
RAY = ("placement.kind=ray", "engine.num_threads=1")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every test ends with the child processes that it began with."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not alive, [process.cmdline() for process in alive]


def run(planned: Plan) -> dict[str, Any]:
    run_experiment(planned, DirectRunner(), QuietWatcher())
    return outcome(planned)


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the experiment comes to in one process; filled by the first test that asks."""
    return {}


def test_agents_in_actors_end_in_the_bits_of_one_process(small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    local = run(small_plan("hacpo", runs_dir=tmp_path / "local"))
    for words in (("placement.pipelined=false",), (), ("placement.colocated=true",)):
        remote = small_plan("hacpo", *RAY, *words, runs_dir=tmp_path / "-".join(["ray", *words]))
        assert run(remote) == local, words
