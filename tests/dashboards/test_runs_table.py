"""The table of runs: conditions, columns, order, groups, notes, deletion."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from dashboards.models.conditions import read_conditions
from dashboards.models.listing import Runs
from dashboards.models.runs_query import Query, Table, as_csv, cell_text
from dashboards.models.runs_table import RunTables
from dashboards.models.scheduling import ScheduleView
from dashboards.report.statistics import Summary
from flows.records.deletion import delete_experiment, deletion_preview
from flows.records.gridfile import read_grids
from flows.records.notes import Notes, read_notes, write_notes
from flows.records.progress import PROGRESS_FILE
from hacpo_core.errors import ConfigError, LockedError
from hacpo_core.store.steps import StepStore
from tests.dashboards.stores import hold_lock, write_grid, write_run


def table_of(runs_dir: Path, conditions: str = "", **query: object) -> Table:
    shown = {"columns": ("run", "method", "seed"), **query}
    return RunTables(Runs(runs_dir)).table(Query(conditions, **shown), ScheduleView())  # type: ignore[arg-type]


@pytest.fixture
def runs(runs_dir: Path) -> Path:
    """Two methods with three seeds each, and a run that has not ended."""
    for seed in range(3):
        write_run(runs_dir, method="hacpo", seed=seed, last=0.7 + 0.01 * seed, with_steps=seed == 0)
        write_run(runs_dir, method="gspo", seed=seed, last=0.6, config={"train": {"num_steps": 40, "dtype": "bf16"}})
    write_run(runs_dir, pair="other", method="hacpo", seed=7, step=3, state="missing")
    return runs_dir


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ("", 7),
        ("method=hacpo", 4),
        ("method=hacpo,gspo pair~tin", 6),
        ("method=HACPO state=done", 3),
        ("seed>=1 seed<3", 4),
        ("method!=hacpo", 3),
        ("pair!~tiny", 1),
        ("accuracy>0.655", 2),
        ("train.num_steps=40.0", 3),
        ("train.dtype~'bf'", 3),
        ("reward/mean>0.4", 1),
        ("other-hacpo", 1),
        ("seed=", 0),
        ("tag=", 7),
    ],
)
def test_conditions_choose_runs_by_any_column(conditions: str, expected: int, runs: Path) -> None:
    table = table_of(runs, conditions)
    assert (table.problem, len(table.rows)) == ("", expected)


def test_column_is_read_at_a_step_or_at_its_best_one(runs: Path) -> None:
    named = ("run", "reward/mean@2", "reward@2", "reward/mean@best", "accuracy@best", "accuracy.dev.llama@40")
    table = table_of(runs, "method=hacpo seed=0", columns=named)
    assert table.problem == ""
    store = StepStore(next((runs / "experiments").glob("tiny-hacpo-s0-*")))
    means = [statistics.fmean(v["reward/mean"] for v in store.metrics(n)["agents"].values()) for n in range(1, 41)]
    assert means[1] != max(means) != means[-1], "neither this step nor the last is the best"
    (row,) = table.rows
    assert row.values[1:] == (means[1], means[1], max(means), pytest.approx(0.65), pytest.approx(0.6))
    assert len(table_of(runs, f"reward@best>={max(means)}").rows) == 1
    own = [store.metrics(step)["agents"]["llama"]["reward/mean"] for step in (2, *range(1, 41))]
    (row,) = table_of(runs, "method=hacpo seed=0", columns=("reward.llama@2", "reward.llama@best")).rows
    assert row.values == (own[0], max(own))
    for wrong in ("reward/mean@first", "accuracy@7"):
        assert f"no run has the column {wrong!r}" in table_of(runs, columns=("run", wrong)).problem


def test_best_accuracy_is_that_of_a_step_with_all_agents(runs_dir: Path) -> None:
    name = write_run(runs_dir, last=0.6)
    path = runs_dir / "experiments" / name / PROGRESS_FILE
    progress = json.loads(path.read_text(encoding="utf-8"))
    first = dict(progress["evaluations"][-1])
    progress["evaluations"] += [first | {"step": 5, "value": 0.9}, first | {"step": 3, "value": 0.8}]
    path.write_text(json.dumps(progress), encoding="utf-8")
    (row,) = table_of(runs_dir, columns=("accuracy@best", "accuracy@5", "accuracy")).rows
    assert row.values == (pytest.approx(0.55), 0.9, pytest.approx(0.55))
    bits = {"bits_per_byte": 1.5}, {"bits_per_byte": 1.25}
    progress["evaluations"] = [first | {"step": 1} | bits[1], first | {"step": 2} | bits[0]]
    path.write_text(json.dumps(progress), encoding="utf-8")
    named = ("bits_per_byte", "bits_per_byte.dev@1", "bits_per_byte.dev@best")
    assert table_of(runs_dir, columns=named).rows[0].values == (1.5, 1.25, 1.25), "the lowest is the best"
    progress["evaluations"] = [
        first | {"step": step, "value": value} for step, value in ((1, math.nan), (2, 0.5), (3, 0.4))
    ]
    path.write_text(json.dumps(progress), encoding="utf-8")
    assert table_of(runs_dir, columns=("accuracy@best",)).rows[0].values == (0.5,)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ("metod=hacpo", r"no run has the column 'metod'; did you mean method\?"),
        ("seed>many", "expected a number after >"),
        ("note='open", "close the quote"),
    ],
)
def test_wrong_condition_says_what_is_wrong_with_it(conditions: str, message: str, runs: Path) -> None:
    table = table_of(runs, conditions)
    assert (re.search(message, table.problem) is not None, table.rows) == (True, ()), table.problem


def test_numbers_are_in_numeric_order_and_unknown_values_last(runs: Path) -> None:
    write_run(runs, pair="tiny", method="hacpo", seed=10)
    ordered = table_of(runs, "method=hacpo", order="-seed", columns=("seed", "train.num_steps"))
    assert [row.values[0] for row in ordered.rows] == [10, 7, 2, 1, 0]
    for order in ("train.num_steps", "-train.num_steps"):
        rows = table_of(runs, order=order, columns=("train.num_steps",)).rows
        assert [row.values[0] for row in rows] == [40, 40, 40, None, None, None, None, None]


def test_group_has_mean_and_interval_over_its_runs(runs: Path) -> None:
    table = table_of(runs, "state=done", group=("method",), columns=("run", "seed", "accuracy", "pair"))
    assert table.columns == ("method", "runs", "accuracy", "pair")
    by_method = {row.values[0]: row.values[1:] for row in table.rows}
    number, accuracy, pair = by_method["hacpo"]
    assert (number, pair) == (3, "tiny")
    assert isinstance(accuracy, Summary)
    assert (accuracy.mean, accuracy.half_width) == (
        pytest.approx(0.66),
        pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4),
    )
    assert cell_text(accuracy) == "0.66 ± 0.025"
    assert by_method["gspo"][1].half_width == pytest.approx(0, abs=1e-12)
    lines = as_csv(table).splitlines()
    assert lines[0] == "method,runs,accuracy,accuracy half width,accuracy runs,pair"


def test_pair_of_a_grid_groups_trainings_of_one_agent_with_those_of_the_pair(runs_dir: Path) -> None:
    write_grid(runs_dir, methods=("gspo", "hacpo"), alone=("gspo",), seeds=(0, 1))
    rows = table_of(runs_dir, "pair=tiny", group=("pair", "method"), columns=("accuracy",)).rows
    assert [row.values[:3] for row in rows] == [("tiny", "gspo", 4), ("tiny", "hacpo", 2)]


def test_csv_has_all_digits_and_no_formula(runs: Path) -> None:
    experiment = table_of(runs, "seed=2 method=hacpo").rows[0].key
    write_notes(runs / "experiments" / experiment, Notes(note="=1+1"))
    text = as_csv(table_of(runs, "seed=2 method=hacpo", columns=("accuracy", "note")))
    assert text == "accuracy,note\n0.6699999999999999,'=1+1\n"


def test_tags_and_archive_are_kept_beside_the_run(runs: Path) -> None:
    first = table_of(runs).rows[0].key
    root = runs / "experiments" / first
    write_notes(root, Notes().with_tags(["best", "v2"]).with_tags(remove=["v2"]).with_note("a note"))
    assert [row.key for row in table_of(runs, "tag=best").rows] == [first]
    write_notes(root, Notes(["best"], "a note", is_archived=True))
    assert (len(table_of(runs).rows), len(table_of(runs, has_archived=True).rows)) == (6, 7)
    assert read_notes(root).note == "a note"
    with pytest.raises(ConfigError, match="got 'two words', expected at most 40 letters"):
        Notes().with_tags(["two words"])


def test_deletion_says_what_is_lost_and_never_touches_a_run_that_trains(runs_dir: Path) -> None:
    record = write_grid(runs_dir, seeds=[0])
    experiment = record.cells[0].experiment
    root = runs_dir / "experiments" / experiment
    (root / "checkpoints" / "000040").mkdir(parents=True)
    (root / "checkpoints" / "000040" / "weights").write_bytes(bytes(1000))
    loss = deletion_preview(root, read_grids(runs_dir))
    assert (loss.step, loss.num_checkpoints, loss.grids) == (40, 1, ("A small grid",))
    assert 1000 < loss.num_bytes < 20_000
    with hold_lock(root), pytest.raises(LockedError):
        delete_experiment(root)
    assert (root / "checkpoints").is_dir()
    delete_experiment(root)
    assert experiment not in Runs(runs_dir).names()
    assert not list((runs_dir / "deleted").iterdir())


def test_bare_words_and_quotes_are_read() -> None:
    (first, second) = read_conditions("tiny note~'two words'")
    assert (first.column, first.operator, first.values) == ("run", "~", ("tiny",))
    assert (second.column, second.values) == ("note", ("two words",))
