"""Disk space of checkpoints, before and after a run is complete."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.planning.compose import compose
from flows.planning.disk import check_space, checkpoint_space
from flows.planning.memory import GIB, ModelShape
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.errors import CapacityError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.checkpoints import OPTIMIZER_FILE, drop_optimizers, latest_checkpoint


def shape(num_parameters: int) -> ModelShape:
    return ModelShape(num_parameters, 36, 4096, 4096, 1024, 12288, 151936)


def test_checkpoints_take_14_bytes_a_weight_in_bfloat16_and_2_once_the_run_is_complete(tmp_path: Path) -> None:
    config = compose("tiny", "gspo", overrides=["engine.dtype=bfloat16"])
    space = checkpoint_space(config, {"a": shape(8 * 10**9)})
    assert (space.one * GIB, space.complete * GIB) == (pytest.approx(112e9), pytest.approx(32e9))
    assert space.training == 3 * space.one
    with pytest.raises(CapacityError, match=f"{tmp_path}: its checkpoints need 104308.13 GiB more, but the disk has"):
        check_space(config, {"a": shape(8 * 10**12 // 3)}, tmp_path)
    check_space(config, {"a": shape(10**6)}, tmp_path)


@pytest.mark.slow
def test_complete_run_has_no_optimizer_states_and_only_its_own_checkpoints_do_without(
    small_plan: Callable[..., Plan],
) -> None:
    planned = small_plan("gspo", "train.num_steps=2", "checkpoint.every=1")
    run_experiment(planned, DirectRunner())
    assert list(planned.root.rglob(OPTIMIZER_FILE)) == []
    found = latest_checkpoint(planned.root, end=2)
    assert found is not None
    assert found.step == 2
    assert latest_checkpoint(planned.root) is None
    drop_optimizers(planned.root)  # again, after a kill
    assert latest_checkpoint(planned.root, end=2) == found
