"""The grid's read model: one state per experiment, rows where agents train alone, totals that count once."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.models.grids.cells import build_matrix, scores_of
from dashboards.models.grids.matrix import Matrix, MatrixCell, Score
from dashboards.models.listing import Runs, UnknownError
from dashboards.models.scheduling import OLD, ScheduleView, Scheduling
from flows.records.failures import Failure
from flows.records.gridfile import GridCell, GridRecord, save_grid
from flows.records.progress import Evaluation, Spent, read_progress
from flows.records.states import ExperimentStatus
from flows.service.schedule import WorkerRecord
from tests.dashboards.conftest import RememberingSchedule, scheduled
from tests.dashboards.stores import evaluations, hold_lock, write_grid, write_run


def matrix_of(runs_dir: Path, name: str, view: ScheduleView | None = None) -> Matrix:
    runs = Runs(runs_dir)
    return build_matrix(runs.grid(name), runs.status, view or ScheduleView())


def test_running_cell_says_that_it_is_being_cancelled_and_has_no_time_left(runs_dir: Path) -> None:
    record = write_grid(runs_dir)
    grid_cell = record.cells[-1]
    root = runs_dir / "experiments" / grid_cell.experiment
    progress = read_progress(root)
    assert progress is not None
    running = ExperimentStatus("running", replace(progress, seconds_left=50.0), None)

    def cell(state: str) -> MatrixCell:
        view = ScheduleView(runs={grid_cell.experiment: scheduled(grid_cell.experiment, state)})
        found = build_matrix(record, lambda _: running, view)
        return next(cell for cell in found.experiments if cell.experiments == (grid_cell.experiment,))

    shown = {
        state: (cell(state).state, cell(state).remark, cell(state).seconds_left) for state in ("Running", "Cancelling")
    }
    assert shown == {"Running": ("running", "", 50.0), "Cancelling": ("running", "being cancelled", None)}


def test_row_shows_agents_that_train_alone_together_or_each(runs_dir: Path) -> None:
    record, runs = write_grid(runs_dir), Runs(runs_dir)
    (section,) = matrix_of(runs_dir, "small_grid").sections
    assert (section.pair, section.seeds) == ("tiny", (0, 1, 2))
    assert [(row.title, row.agent) for row in section.rows] == [("GSPO", ""), ("HACPO", "")]
    (each,) = build_matrix(record, runs.status, ScheduleView(), by_agent=True).sections
    assert [row.title for row in each.rows] == ["GSPO · qwen", "GSPO · llama", "HACPO · qwen", "HACPO · llama"]
    together, alone, hacpo = (row.cells[1] for row in (section.rows[0], each.rows[0], section.rows[1]))
    assert together is not None and alone is not None and hacpo is not None
    assert len(together.experiments) == 2 and alone.experiments == together.experiments[:1]
    assert (together.step, together.num_steps, together.state) == (80, 80, "done")
    assert hacpo.scores == (Score("qwen", pytest.approx(0.71)), Score("llama", pytest.approx(0.61)))
    assert (hacpo.step, hacpo.num_steps, hacpo.spent.tokens) == (40, 40, 80_000)


def test_totals_count_a_shared_experiment_once(runs_dir: Path) -> None:
    record = write_grid(runs_dir)
    shared = [GridCell("other", p.method, "", p.seed, p.agent, p.experiment) for p in record.cells]
    both = GridRecord("both", "Both", "plain", ["dev"], [*record.cells, *shared])
    runs = Runs(runs_dir)
    totals = build_matrix(both, runs.status, ScheduleView()).totals
    assert totals.counts["done"] == totals.num_all == 9
    assert totals.spent.tokens == 6 * 40_000 + 3 * 80_000


def test_time_left_is_the_median_of_complete_runs_over_the_slots(runs_dir: Path) -> None:
    names = [write_run(runs_dir, seed=seed) for seed in (0, 1)]  # 96 s of phases each
    names.append(write_run(runs_dir, seed=2, step=10, state="missing"))  # three quarters of 96 s are left
    names.append(write_run(runs_dir, seed=3, step=0, state="missing"))
    grid_cells = [GridCell("tiny", "hacpo", "", seed, "qwen", name) for seed, name in enumerate(names)]
    record, runs = GridRecord("g", "G", "plain", [], grid_cells), Runs(runs_dir)
    assert build_matrix(record, runs.status, ScheduleView()).totals.seconds_left == pytest.approx(72 + 96)
    two = ScheduleView(workers=[WorkerRecord("a", 2)])
    assert build_matrix(record, runs.status, two).totals.seconds_left == pytest.approx(96)


def test_time_left_of_a_run_that_was_never_begun_is_that_of_its_method(runs_dir: Path) -> None:
    names = [write_run(runs_dir, method="gspo", agents=["qwen"], seed=seed) for seed in (0, 1, 2)]  # 48 s
    names.append(write_run(runs_dir, seed=0))  # 96 s
    grid_cells = [GridCell("tiny", "gspo", "", seed, "qwen", name) for seed, name in enumerate(names[:3])]
    grid_cells += [
        GridCell("tiny", "hacpo", "", 0, "qwen", names[3]),
        GridCell("tiny", "hacpo", "", 1, "qwen", "never-begun"),
    ]
    totals = build_matrix(GridRecord("g", "G", "plain", [], grid_cells), Runs(runs_dir).status, ScheduleView()).totals
    assert totals.seconds_left == pytest.approx(96)


def test_score_is_the_mean_over_benchmarks_that_count_where_the_agent_was_evaluated_last() -> None:
    spent = Spent()
    found = [
        Evaluation(0, "dev", "a", 0.1, spent),
        Evaluation(20, "dev", "a", 0.4, spent),
        Evaluation(10, "test", "a", 0.6, spent),
        Evaluation(20, "other", "a", 0.9, spent),
    ]
    assert scores_of(found, ["a", "b"], ["dev", "test"]) == (Score("a", pytest.approx(0.4)),), "not test's of step 10"
    assert scores_of(found, ["a"], ["never"]) == (Score("a", pytest.approx(0.65)),)
    assert scores_of(evaluations(["a"], 0), ["a"], []) == (Score("a", 0.5),)


def test_state_follows_lock_failure_and_result(runs_dir: Path) -> None:
    name = write_run(runs_dir, step=3, state="missing")
    runs = Runs(runs_dir)
    assert runs.status(name).state == "missing"
    with hold_lock(runs_dir / "experiments" / name):
        assert runs.status(name).state == "running"
    write_run(runs_dir, step=3, state="failed", failure=Failure("E", "m", ""))
    assert runs.status(name).reason == "E: m"
    write_run(runs_dir, step=40)
    assert runs.status(name).state == "done"


def test_unchanged_experiment_is_not_parsed_again(runs_dir: Path) -> None:
    name, parsed = write_run(runs_dir), []

    def read(root: Path) -> ExperimentStatus:
        parsed.append(root.name)
        return ExperimentStatus("done", None, None)

    def age(seconds: float) -> None:
        written_at = time.time() - seconds
        os.utime(runs_dir / "experiments" / name, (written_at, written_at))

    runs = Runs(runs_dir, read=read)
    age(60.0)
    runs.status(name), runs.status(name)
    assert parsed == [name]
    write_run(runs_dir, step=39)
    age(50.0)
    runs.status(name), runs.status(name)
    assert parsed == [name, name]
    age(0.0)
    runs.status(name), runs.status(name)
    assert parsed == [name] * 4, "what has just been written may have been written again at the same time of the clock"


def test_everything_in_the_folder_is_a_grid(runs_dir: Path) -> None:
    write_run(runs_dir, pair="a", seed=0)
    write_run(runs_dir, pair="b", seed=1, step=3, state="missing")
    (runs_dir / "experiments" / "tiny-naive-s4-0123abcd").mkdir()  # planned, without any progress
    found = matrix_of(runs_dir, "all")
    assert [section.pair for section in found.sections] == ["a", "b", "tiny"]
    assert [cell.seed for cell in found.experiments] == [0, 1, 4]
    assert found.totals.counts["missing"] == 2


def test_training_of_one_agent_belongs_to_the_pair_of_its_grid(runs_dir: Path) -> None:
    write_grid(runs_dir, name="long", seeds=(0, 1), alone=("gspo",))
    other = write_run(runs_dir, pair="b", method="hacpo", seed=0)
    again = write_run(runs_dir, pair="c", method="hacpo", seed=0)
    grid_cells = [GridCell("tiny", "hacpo", "", 0, agent, other) for agent in ("qwen", "llama")]
    save_grid(runs_dir, GridRecord("short", "Other settings", "plain", ["dev"], grid_cells))
    found = matrix_of(runs_dir, "all")
    rows = {(s.pair, row.variant.method, row.variant.label): row.cells for s in found.sections for row in s.rows}
    assert set(rows) == {
        ("tiny", "gspo", ""), ("tiny", "hacpo", ""), ("tiny", "hacpo", "variant 2"), ("c", "hacpo", ""),
    }  # fmt: skip
    assert [len(cell.experiments) for cell in rows["tiny", "gspo", ""] if cell is not None] == [2, 2]
    assert [cell.experiments for cell in rows["c", "hacpo", ""] if cell is not None] == [(again,)]
    assert found.totals.num_all == 8, "each experiment is counted once"


@pytest.mark.parametrize("name", ["..", ".", "", "nope", "../experiments", "a/b"])
def test_only_listed_names_become_paths(name: str, runs_dir: Path) -> None:
    write_run(runs_dir)
    with pytest.raises(UnknownError):
        Runs(runs_dir).root(name)
    with pytest.raises(UnknownError):
        Runs(runs_dir).grid(name)


def test_schedule_of_an_earlier_visit_is_read_again_or_marked() -> None:
    schedule, may_answer, asked = RememberingSchedule(), threading.Event(), []

    def connect() -> RememberingSchedule:
        asked.append(1)
        assert may_answer.wait(60)
        return schedule

    may_answer.set()
    scheduling = Scheduling(connect, period_s=3600.0, old_s=0.0)  # type: ignore[arg-type, return-value]
    try:
        assert scheduling.view(wait_s=60).runs == {}
        schedule.known = {"a": scheduled("a", "Scheduled")}
        assert list(scheduling.view(wait_s=60).runs) == ["a"]  # every answer is old at once, so it asks again
        may_answer.clear()
        assert scheduling.view(wait_s=0.0).notice == OLD
    finally:
        may_answer.set()
        scheduling.close()
