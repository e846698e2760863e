"""Every shipped method is killed and resumed to the bit, with what its parts remember."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.planning.declarations import available
from flows.planning.plans import Plan
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import outcome
from tests.methods.test_plugins import SHORT, states
from tests.test_resume import run_process

IN_OTHER_TESTS = {"hacpo", "sage"}
ABLATIONS = {name for name in available("method") if name.startswith(("hacpo_alpha", "hacpo_no_", "hacpo_window"))}
FAST = {"dapo"}
"""a plan with rounds and a state of its own; `make soak` kills the rest"""
METHODS = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.soak)
    for name in available("method")
    if name not in IN_OTHER_TESTS | ABLATIONS
]
WORDS = {
    "sage_grpo": (r'method.plan.step_end="\n"',),
    "ha_dw": ("method.estimate.anchor_steps=2",),
    "hacpo_ha_dw": ("method.estimate.anchor=kalman",),
}


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", METHODS)
def test_shipped_method_is_killed_and_resumed_to_the_bit(
    method: str, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    words = (*WORDS.get(method, ()), *SHORT)
    reference = small_plan(method, *words, runs_dir=tmp_path / "reference")
    exit_code, counts = run_process(reference)
    assert exit_code == 0
    rng = random.Random(method)
    kind = rng.choice(["after phase", "before commit", "after rename", "after optimizer step", "before sampling"])
    place = kind, rng.randint(counts[kind] // 2, counts[kind])
    killed = small_plan(method, *words, runs_dir=tmp_path / "killed")
    assert run_process(killed, place)[0] == -signal.SIGKILL, place
    assert run_process(killed)[0] == 0, place
    assert outcome(killed) == outcome(reference), place
    assert states(StepStore(killed.root), 4) == states(StepStore(reference.root), 4), place


OPTIONS = {
    "teacher": ("distil", "method.estimate.name=tests.methods.test_distilled:LlamaTeaches"),
    "iterations": ("hacpo", "method.build.num_iterations=2", "optimizer.schedule=cosine"),
}
"""fields with which an update has a state or passes of its own"""


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("option", OPTIONS)
def test_option_of_an_update_is_killed_and_resumed_to_the_bit(
    option: str, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    method, *fields = OPTIONS[option]
    reference = small_plan(method, *fields, *SHORT, runs_dir=tmp_path / "reference")
    exit_code, counts = run_process(reference)
    assert exit_code == 0
    place = "after optimizer step", counts["after optimizer step"] * 3 // 4
    killed = small_plan(method, *fields, *SHORT, runs_dir=tmp_path / "killed")
    assert run_process(killed, place)[0] == -signal.SIGKILL, place
    assert run_process(killed)[0] == 0, place
    assert outcome(killed) == outcome(reference), place
    assert states(StepStore(killed.root), 4) == states(StepStore(reference.root), 4), place
