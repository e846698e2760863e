"""The grid's read model: one state per experiment, rows where agents train alone, totals that count once."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.models.grids.matrix import Matrix, build_matrix, scores_of
from dashboards.models.listing import Runs
from dashboards.models.scheduling import ScheduleView
from flows.records.gridfile import GridCell, GridRecord
from flows.records.progress import Evaluation, Progress, Spent
from flows.records.states import ExperimentStatus
from tests.dashboards.stores import evaluations, write_grid, write_run


def matrix_of(runs_dir: Path, name: str, view: ScheduleView | None = None) -> Matrix:
    runs = Runs(runs_dir)
    return build_matrix(runs.grid(name), runs.status, view or ScheduleView())


def test_row_shows_agents_that_train_alone_together(runs_dir: Path) -> None:
    write_grid(runs_dir)
    (section,) = matrix_of(runs_dir, "small_grid").sections
    assert (section.pair, section.seeds) == ("tiny", (0, 1, 2))
    assert [variant.title for variant in section.rows] == ["GSPO", "HACPO"]
    together, hacpo = (cells[1] for cells in section.rows.values())
    assert together is not None and hacpo is not None
    assert len(together.experiments) == 2
    assert (together.step, together.num_steps, together.state) == (80, 80, "done")
    assert hacpo.scores == pytest.approx({"qwen": 0.71, "llama": 0.61})
    assert (hacpo.step, hacpo.num_steps, hacpo.spent.tokens) == (40, 40, 80_000)


def test_totals_count_a_shared_experiment_once(runs_dir: Path) -> None:
    record = write_grid(runs_dir)
    shared = [GridCell("other", p.method, "", p.seed, p.agent, p.experiment) for p in record.cells]
    both = GridRecord("both", "Both", "plain", ["dev"], [*record.cells, *shared])
    runs = Runs(runs_dir)
    totals = build_matrix(both, runs.status, ScheduleView())
    assert totals.counts["done"] == len(totals.experiments) == 9
    assert totals.spent.tokens == 6 * 40_000 + 3 * 80_000


def test_time_left_is_the_median_of_complete_runs_over_the_slots(runs_dir: Path) -> None:
    names = [write_run(runs_dir, seed=seed) for seed in (0, 1)]  # 96 s of phases each
    names.append(write_run(runs_dir, seed=2, step=10, state="missing"))  # three quarters of 96 s are left
    names.append(write_run(runs_dir, seed=3, step=0, state="missing"))
    grid_cells = [GridCell("tiny", "hacpo", "", seed, "qwen", name) for seed, name in enumerate(names)]
    record, runs = GridRecord("g", "G", "plain", [], grid_cells), Runs(runs_dir)
    assert build_matrix(record, runs.status, ScheduleView()).seconds_left == pytest.approx(72 + 96)
    two = ScheduleView(num_slots=2)
    assert build_matrix(record, runs.status, two).seconds_left == pytest.approx(96)


def test_score_is_the_mean_over_benchmarks_that_count_where_the_agent_was_evaluated_last() -> None:
    spent = Spent()
    found = [
        Evaluation(0, "dev", "a", 0.1, spent),
        Evaluation(20, "dev", "a", 0.4, spent),
        Evaluation(10, "test", "a", 0.6, spent),
        Evaluation(20, "other", "a", 0.9, spent),
    ]
    progress = Progress("p", "m", 0, 20, 20, 0.0, evaluations=found)
    assert scores_of(progress, ["a", "b"], ["dev", "test"]) == {"a": 0.4}, "not test's of step 10"
    assert scores_of(progress, ["a"], ["never"]) == pytest.approx({"a": 0.65})
    assert scores_of(replace(progress, evaluations=evaluations(["a"], 0)), ["a"], []) == {"a": 0.5}


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
