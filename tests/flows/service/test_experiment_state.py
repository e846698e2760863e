"""One answer to "what state is this experiment in?": folder, flow run, and whether the run is dead."""

import pytest

from flows.records.failures import Failure
from flows.records.states import ExperimentStatus
from flows.service.experiment_state import LIVE, state_of
from tests.dashboards.conftest import scheduled

FAILED = ExperimentStatus("failed", None, Failure("EngineError", "out of memory", ""))
MISSING = ExperimentStatus("missing", None, None)


@pytest.mark.parametrize(
    ("status", "run", "unavailable", "expected"),
    [
        (ExperimentStatus("done", None, None), "Crashed", "no model", "done"),
        (ExperimentStatus("running", None, None), "Scheduled", "", "running"),
        (FAILED, None, "", "failed"),
        (FAILED, "Scheduled", "", "queued"),
        (FAILED, "Running", "", "running"),
        (MISSING, "Crashed", "", "failed"),
        (MISSING, "Cancelled", "", "missing"),
        (MISSING, "Cancelling", "", "running"),
        (MISSING, None, "no model", "unavailable"),
        (MISSING, None, "", "missing"),
    ],
)
def test_files_count_before_the_schedule_and_the_queue_before_an_old_failure(
    status: ExperimentStatus, run: str | None, unavailable: str, expected: str
) -> None:
    found = state_of(status, scheduled("x", run) if run else None, unavailable)
    assert found.state == expected


def test_reasons_come_from_whoever_knows() -> None:
    assert state_of(FAILED, None, "").reason == "EngineError: out of memory"
    assert state_of(MISSING, scheduled("x", "Crashed", message="killed by 9"), "").reason == "killed by 9"
    assert state_of(MISSING, scheduled("x", "Scheduled"), "").reason == "waiting for a worker"


@pytest.mark.parametrize(
    ("status", "run", "expected"),
    [
        ("missing", "Scheduled", ("failed", True)),
        ("missing", "Pending", ("failed", True)),
        ("missing", "Running", ("failed", True)),
        ("missing", "Cancelling", ("missing", False)),
        ("failed", "Running", ("failed", False)),
        ("done", "Running", ("done", False)),
        ("running", "Running", ("running", True)),
    ],
)
def test_dead_run_is_resubmitted_unless_its_folder_says_more(status: str, run: str, expected: tuple[str, bool]) -> None:
    folder = FAILED if status == "failed" else ExperimentStatus(status, None, None)
    state = state_of(folder, scheduled("x", run), is_dead=True)
    assert (state.state, state.will_continue) == expected


def test_only_live_and_crashed_runs_continue() -> None:
    continuing = {
        state
        for state in (*LIVE, "Completed", "Failed", "Crashed", "Cancelled")
        if state_of(MISSING, scheduled("x", state)).will_continue
    }
    assert continuing == {*LIVE, "Crashed"}
    assert not state_of(FAILED, scheduled("x", "Crashed")).will_continue, "the reconciler gave it up"
    assert not state_of(MISSING, None).will_continue
