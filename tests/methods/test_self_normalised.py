"""The objective for distant models: its centers and their state, its surrogate, and where it is refused.

Shapes: B row, T token.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.errors import ConfigError, MethodError
from hacpo_core.methods.checks import checked_log_centers
from hacpo_core.methods.objective import LossRows, RowKind, Surrogate
from hacpo_core.methods.objectives.cross_clip import CrossClip
from hacpo_core.methods.objectives.self_normalised import SelfNormalised
from hacpo_core.phases.definitions import definition
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import finish
from tests.methods.test_plugins import SHORT, states
from tests.test_resume import break_off

HALF = math.log(0.5)


def column(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def surrogate(
    objective: CrossClip, ratios: list[float], advantages: list[float], *, center: float | None, update: int = 0
) -> tuple[Surrogate, list[float]]:
    """The objective on rows of one token, the first one own, and the gradient of each row's log-probability."""
    num_rows = len(ratios)
    logprob_BT = torch.full((num_rows, 1), HALF, dtype=torch.float64, requires_grad=True)
    kinds = torch.full((num_rows,), int(RowKind.FOREIGN))
    kinds[0] = RowKind.OWN
    center_B = None if center is None else torch.full((num_rows,), center, dtype=torch.float64)
    if center_B is not None:
        center_B[0] = 0.0
    rows = LossRows(
        mask_BT=torch.ones(num_rows, 1, dtype=torch.bool),
        kind_B=kinds,
        source_B=(kinds == RowKind.FOREIGN).long(),
        advantage_B=column(advantages),
        weight_B=torch.ones(num_rows, dtype=torch.float64),
        old_mean_logprob_B=HALF - column(ratios).log(),
        old_logprob_BT=torch.full((num_rows, 1), HALF, dtype=torch.float64),
        log_center_B=center_B,
    )
    found = objective.surrogate(rows, logprob_BT, update=update)
    found.value_B.sum().backward()
    assert logprob_BT.grad is not None
    return found, logprob_BT.grad.flatten().tolist()


def test_rows_of_a_distant_model_are_stopped_by_hacpo_and_learnt_from_here() -> None:
    ratios, center = [1.0, 0.4, 0.36, 0.2], math.log(0.4)
    found, gradient = surrogate(SelfNormalised(cross_exponent=1.0), ratios, [0.0, 2.0, 2.0, 2.0], center=center)
    # s~ = 1, 0.9, 0.5: value clip(s~) clip(s~) A, gradient s~ s~ A inside of [0.8, 1.2]
    assert found.ratio_B.tolist() == pytest.approx([1.0, 1.0, 0.9, 0.5])
    assert found.value_B.tolist() == pytest.approx([0.0, 2.0, 0.81 * 2, 0.8 * 0.8 * 2])
    assert gradient[1:] == pytest.approx([2.0, 0.81 * 2, 0.0])
    assert found.stopped_share_B.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert found.floor_B[1:].tolist() == [0.8] * 3
    assert found.ceiling_B[1:].tolist() == [1.2] * 3
    plain, nothing = surrogate(CrossClip(), ratios, [0.0, 2.0, 2.0, 2.0], center=center)
    assert plain.stopped_share_B.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert nothing == [0.0] * 4


def test_ceiling_is_above_one_only_where_it_is_mirrored() -> None:
    for objective, stopped in ((SelfNormalised(), 0.0), (SelfNormalised(cross_ceiling="one"), 1.0)):
        found, _ = surrogate(objective, [1.0, 0.44], [1.0, 1.0], center=math.log(0.4))  # s~ = 1.1
        assert found.stopped_share_B[1].item() == stopped
    assert SelfNormalised().cross_limit(2) == (pytest.approx(0.85), pytest.approx(1.15))
    assert SelfNormalised(cross_ceiling="one").cross_limit(2) == CrossClip().cross_limit(2)
    assert SelfNormalised(cross_bounds="none").cross_limit(2) == (0.0, math.inf)
    assert SelfNormalised(cross_bounds="own").cross_limit(2) == (1 - 3e-4, 1 + 4e-4)


@pytest.mark.parametrize("center", [None, 0.0])
@pytest.mark.parametrize("update", [0, 3])
def test_center_of_zero_with_hacpos_ceiling_is_hacpo_to_the_bit(center: float | None, update: int) -> None:
    options: dict[str, Any] = {"cross_exponent": 1.5}
    ratios, advantages = [0.9, 0.7, 0.87, 0.99, 1.0, 1.3], [1.0, -2.0, 1.0, 0.5, 1.0, -1.0]
    found = surrogate(SelfNormalised(cross_ceiling="one", **options), ratios, advantages, center=center, update=update)
    hacpo = surrogate(CrossClip(**options), ratios, advantages, center=None, update=update)
    assert found[1] == hacpo[1]
    for name in ("value_B", "ratio_B", "stopped_share_B", "floor_B", "ceiling_B"):
        assert torch.equal(getattr(found[0], name), getattr(hacpo[0], name)), name


def test_own_rows_have_no_center() -> None:
    found, _ = surrogate(SelfNormalised(), [1.0001, 0.4], [1.0, 1.0], center=math.log(0.4))
    assert found.ratio_B[0].item() == pytest.approx(1.0001)
    assert found.ceiling_B[0].item() == pytest.approx(1 + 4e-4)


def test_center_is_averaged_over_the_window_and_each_source_has_its_own() -> None:
    objective = SelfNormalised(window=2)
    centers, state = objective.log_centers(lambda: {"b": np.array([-1.0, -3.0]), "c": np.array([0.5])}, {})
    assert centers == {"b": -2.0, "c": 0.5}
    centers, state = objective.log_centers(lambda: {"b": np.array([-1.0])}, state)
    assert centers == {"b": -1.5}, "the current step included; no row of c, so none is needed"
    assert state == {"b": [-2.0, -1.0], "c": [0.5]}
    centers, state = objective.log_centers(lambda: {"b": np.array([0.0]), "c": np.array([1.5])}, state)
    assert centers == {"b": -0.5, "c": 1.0}, "the window of b has moved on"


def test_window_of_one_forgets_at_once() -> None:
    centers, state = SelfNormalised(window=1).log_centers(lambda: {"b": np.array([-1.0])}, {"b": [-9.0]})
    assert (centers, state) == ({"b": -1.0}, {"b": [-1.0]})


class Careless(SelfNormalised):
    """Gives no number."""

    def log_centers(self, first_log_ratios: Any, state: Any) -> Any:
        return {"a": math.nan}, state


def test_centers_of_a_users_class_are_checked() -> None:
    with pytest.raises(MethodError, match=r"log_centers: 'a' is nan, expected a finite number"):
        checked_log_centers(Careless(), dict, {})


def test_method_needs_shared_rollouts_and_fields_that_do_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method.objective.name: got self_normalised, .* set method.shares_rollouts"):
        compose("tiny", "gspo", overrides=["method.objective.name=self_normalised"])
    with pytest.raises(ConfigError, match=r"cross_ceiling cannot take effect: method.objective.cross_bounds is own"):
        compose(
            "tiny", "hacpo_sn", overrides=["method.objective.cross_bounds=own", "method.objective.cross_ceiling=one"]
        )


def metrics(planned: Plan, step: int, agent: str) -> dict[str, float]:
    value = StepStore(planned.root).read_value(step, "metrics", "metrics.json")
    found: dict[str, float] = value["agents"][agent]
    return found


@pytest.mark.slow
def test_center_is_logged_averaged_and_what_the_bounds_see(small_plan: Callable[..., Plan]) -> None:
    words = (*SHORT, "train.num_steps=3", "method.objective.window=2", "engine.skip_zero_advantage=false")
    words += ("method.build.problems=8",)
    planned = small_plan("hacpo_sn", *words)
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    name = "ratio_from_llama/log_center"
    assert "s~ = s / exp(c)" in definition(name)
    values = [store.read_value(step, "update.qwen", "update.qwen.json") for step in (1, 2, 3)]
    means = [value["objective_state"]["llama"] for value in values]
    assert [len(each) for each in means] == [1, 2, 2]
    assert means[2][0] == means[1][1]
    for step, value in enumerate(values, start=1):
        center = sum(means[step - 1]) / len(means[step - 1])
        assert value["log_centers"] == {"llama": pytest.approx(center, abs=1e-15)}
        assert metrics(planned, step, "qwen")[name] == value["log_centers"]["llama"]
    rows = store.read_table(1, "update.qwen", "update.qwen.parquet")
    first = rows[(rows.agent == "llama") & (rows["update"] == 0)]
    assert len(first) == 16, "all of llama's rows are in the one mini-batch"
    assert np.log(first.ratio).mean() == pytest.approx(0.0, abs=1e-5)
    assert abs(means[0][0]) > 1e-3
    assert set(first.ceiling) == {float(np.float32(1.2))}


@pytest.mark.slow
def test_run_broken_off_and_resumed_is_the_undisturbed_one_to_the_bit(
    small_plan: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The state comes from the checkpoint of step 2 once, and once one update is replayed after it."""
    whole = small_plan("hacpo_sn", *SHORT, runs_dir=tmp_path / "whole")
    expected = finish(whole), states(StepStore(whole.root), 4)
    for kind, step in (("rollout", 3), ("rollout", 4)):
        broken = small_plan("hacpo_sn", *SHORT, runs_dir=tmp_path / f"{kind}-{step}")
        break_off(broken, kind, step)
        assert (finish(broken), states(StepStore(broken.root), 4)) == expected
    assert "different" not in caplog.text
