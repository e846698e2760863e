"""Whole experiments that DeepSpeed trains, both agents in this process: broken off, failing, and beside torch's."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it looks for one when it is imported
pytest.importorskip("deepspeed", reason="needs the deepspeed extra")

from flows.planning.plans import Plan
from hacpo_core.engines.deepspeed.learner import DeepspeedLearner
from tests.experiments_outcome import finish, outcome
from tests.test_resume import break_off, run_with_failed_update

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def words(stage: int) -> tuple[str, ...]:
    return "engine.learner=deepspeed", f"engine.deepspeed.stage={stage}"


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_experiment_that_is_broken_off_and_resumed_is_the_undisturbed_one_to_the_bit(
    small_plan: Callable[..., Plan], tmp_path: Path, stage: int
) -> None:
    expected = finish(small_plan("hacpo", *words(stage), runs_dir=tmp_path / "reference"))
    broken = small_plan("hacpo", *words(stage))
    break_off(broken, "rollout", 4)  # two steps after the checkpoint: one update phase is replayed
    assert finish(broken) == expected
    accuracy = {key: value for key, value in expected.items() if "evaluate" in key}
    assert len(accuracy) > 2


def test_update_that_fails_midway_is_repeated_by_a_fresh_engine(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = finish(small_plan("hacpo", *words(2), runs_dir=tmp_path / "reference"))
    plan = small_plan("hacpo", *words(2))
    run_with_failed_update(plan, DeepspeedLearner, monkeypatch)
    assert outcome(plan) == expected
