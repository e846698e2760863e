"""The way from a step to an objective's equation: seven calls, which docs/architecture.md names."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.planning.plans import Plan
from flows.runs.opening import open_experiment
from hacpo_core.algorithm import train_step
from hacpo_core.methods.objective import LossRows, Surrogate
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.phases.runner import DirectRunner

ROOT = Path(__file__).parents[2]
WAY = ["train_step", "update", "Agent.update", "BaseLearner.update", "BaseLearner.passes", "objective_values"]
WAY += ["CrossClip.surrogate"]
RUNNER = str(ROOT / "hacpo_core" / "phases" / "runner.py")


def product_frames() -> list[str]:
    """Names of the product's functions on the stack, the outermost first: no runner, lambda or generator."""
    frame, names = sys._getframe(), []
    while frame is not None:
        code = frame.f_code
        is_product = code.co_filename.startswith(str(ROOT / "hacpo_core")) and code.co_filename != RUNNER
        if is_product and not code.co_name.startswith("<") and not code.co_flags & 0x20:
            names.append(code.co_qualname)
        frame = frame.f_back
    return names[::-1]


def test_seven_calls_lead_from_a_step_to_the_objective(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[list[str]] = []
    inner = CrossClip.surrogate

    def surrogate(self: CrossClip, rows: LossRows, logprob_BT: object, *, update: int) -> Surrogate:
        ways.append([*product_frames(), "CrossClip.surrogate"])
        return inner(self, rows, logprob_BT, update=update)  # type: ignore[arg-type]

    monkeypatch.setattr(CrossClip, "surrogate", surrogate)
    with open_experiment(small_plan("hacpo", "train.num_steps=1")) as (experiment, _):
        train_step(experiment, 1, DirectRunner())
    assert ways and all(way == WAY for way in ways), ways[0]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in WAY)
