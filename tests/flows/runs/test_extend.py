"""A complete run that is continued to more steps."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.planning.plans import Plan
from flows.records.states import RESULT_FILE, experiment_status
from flows.runs.experiment import run_experiment
from flows.runs.extend import extend
from hacpo_core.errors import ConfigError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import outcome


def complete(planned: Plan) -> Plan:
    """The plan, with a result that nobody trained for."""
    (planned.root / RESULT_FILE).write_text(json.dumps({"id": planned.id, "table": []}), encoding="utf-8")
    return planned


@pytest.mark.slow
def test_extended_run_has_the_bits_of_one_run_of_its_length_and_leaves_the_shorter_as_it_is(
    small_plan: Callable[..., Plan], undisturbed: Callable[[Plan], dict[str, Any]], tmp_path: Path
) -> None:
    short = small_plan("hacpo", "train.num_steps=2", "checkpoint.keep_optimizer=true")
    run_experiment(short, DirectRunner())
    before = outcome(short)
    longer = extend(short, 4)
    assert StepStore(longer.root).num_complete() == 2
    run_experiment(longer, DirectRunner())
    assert extend(short, 4) == longer, "it is found again"

    whole_plan = small_plan("hacpo", runs_dir=tmp_path / "whole")
    whole, extended = undisturbed(whole_plan), outcome(longer)
    assert longer.id == whole_plan.id != short.id
    assert {name: value for name, value in extended.items() if name in whole} == whole
    former_last = {f"2 evaluate.test.{agent}" for agent in ("qwen", "llama")}
    assert extended.keys() - whole.keys() == former_last, "the shorter run's last step was evaluated on more"
    shutil.rmtree(longer.root)
    assert outcome(short) == before
    assert experiment_status(short.root).state == "done"


@pytest.mark.parametrize(
    ("words", "num_steps", "why"),
    [
        (("checkpoint.keep_optimizer=false",), 6, "its optimizer's states went when it was complete"),
        ((), 4, r"--steps: got 4, expected more than its 4"),
        (("optimizer.schedule=cosine",), 6, r"learning rates depend on the number of steps .*schedule=cosine.*anew"),
    ],
)
def test_run_that_cannot_be_extended_says_why(
    words: tuple[str, ...], num_steps: int, why: str, small_plan: Callable[..., Plan]
) -> None:
    planned = small_plan("gspo", "checkpoint.keep_optimizer=true", *words)
    with pytest.raises(ConfigError, match="is not complete; finish it first"):
        extend(planned, 6)
    complete(planned)
    with pytest.raises(ConfigError, match=f"{planned.id}: .*{why}"):
        extend(planned, num_steps)
