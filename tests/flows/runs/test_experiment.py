"""How an experiment that is ended from outside ends: by Ctrl-C, or by SIGTERM as Prefect raises it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows.planning.plans import CONTENTS_FILE, Plan, find_plan
from flows.records.failures import record_failure
from flows.records.mlflow_address import STATE_FILE
from flows.records.states import CONFIG_FILE, RESULT_FILE, experiment_status
from flows.runs.experiment import run_experiment
from flows.runs.tracking import plan_tracking_uri
from hacpo_core.errors import LockedError, StoreError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.lock import ExperimentLock
from tests.experiments_outcome import outcome

pytestmark = pytest.mark.slow


class _Ended(BaseException):
    """As Prefect's TerminationSignal."""


class _Raising(DirectRunner):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def start(self, phase: Any, work: Callable[[], None], *, after: Any = ()) -> Any:
        if (phase.kind, phase.step) == ("update", 1):
            raise self._error
        return super().start(phase, work, after=after)


@pytest.mark.parametrize(
    ("error", "status", "state"),
    [
        (_Ended(), "KILLED", "missing"),
        (KeyboardInterrupt(), "KILLED", "missing"),
        (ValueError("no"), "FAILED", "failed"),
    ],
)
def test_mlflow_run_of_an_experiment_that_is_ended_is_killed_and_of_one_that_fails_failed(
    error: BaseException, status: str, state: str, small_plan: Callable[..., Plan]
) -> None:
    planned = small_plan("hacpo", "tracking.enabled=true", "evaluate.during=[]", "evaluate.final=[]")
    with pytest.raises(type(error)):
        run_experiment(planned, _Raising(error))
    ids = json.loads((planned.root / STATE_FILE).read_text(encoding="utf-8"))
    client = MlflowClient(plan_tracking_uri(planned))
    runs = client.search_runs([ids["experiment"]])
    assert [run.info.status for run in runs] == [status]
    assert experiment_status(planned.root).state == state


def test_run_whose_result_cannot_be_written_is_not_finished_in_mlflow(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=true")
    planned = small_plan("gspo", *words)

    def full(path: Path, value: object) -> None:
        raise StoreError(f"cannot write {path}: the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("flows.runs.experiment.write_json", full)
        with pytest.raises(StoreError, match="the disk is full"):
            run_experiment(planned, DirectRunner())
    ids = json.loads((planned.root / STATE_FILE).read_text(encoding="utf-8"))
    client = MlflowClient(plan_tracking_uri(planned))
    assert client.get_run(ids["run"]).info.status == "FAILED"
    run_experiment(planned, DirectRunner())
    assert client.get_run(ids["run"]).info.status == "FINISHED"
    assert experiment_status(planned.root).state == "done"


def test_second_command_changes_nothing_of_what_the_first_one_trains(small_plan: Callable[..., Plan]) -> None:
    """Neither its log, nor its failure: what the second one finds wrong first may be something else."""
    planned = small_plan("gspo")
    (planned.root / CONTENTS_FILE).write_text('{"train sums": "another"}', encoding="utf-8")
    record_failure(planned.root, ValueError("of an earlier attempt"))
    before = {path.name: path.read_bytes() for path in planned.root.iterdir()}
    with ExperimentLock(planned.root):
        with pytest.raises(LockedError):
            run_experiment(planned, DirectRunner())
        after = {path.name: path.read_bytes() for path in planned.root.iterdir() if path.name != "lock"}
    assert after == before


def test_plan_that_nobody_saved_is_saved_before_it_is_trained(small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    words = ("train.num_steps=1", "evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=true")
    planned = small_plan("gspo", *words)
    (planned.root / CONFIG_FILE).unlink()
    run_experiment(planned, DirectRunner())
    assert find_plan(tmp_path / "runs", planned.id).config == planned.config


@pytest.mark.parametrize("name", ["manifest.json", "metrics.json"])
def test_step_that_is_lost_before_a_checkpoint_is_trained_again(name: str, small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo")
    run_experiment(planned, DirectRunner())
    before = outcome(planned)
    (planned.root / RESULT_FILE).unlink()
    (planned.root / "steps" / "000003" / name).unlink()
    run_experiment(planned, DirectRunner())
    assert outcome(planned) == before
