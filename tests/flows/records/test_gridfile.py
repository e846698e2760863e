"""The record of a grid: what all calls together asked for, and of which file."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.records.gridfile import GridCell, GridRecord, read_grids, recorded_seeds, save_grid


def record(**experiments: str) -> GridRecord:
    """A grid "g" with a cell for each seed."""
    cells = [GridCell("p", "hacpo", "", int(seed.removeprefix("s")), "a", name) for seed, name in experiments.items()]
    return GridRecord("g", "A grid", "plain", ["dev"], cells)


def test_record_is_the_union_of_what_was_asked_and_the_later_experiment_of_a_cell(tmp_path: Path) -> None:
    assert save_grid(tmp_path, record(s0="x-0", s1="x-1")) == {"x-0", "x-1"}
    assert save_grid(tmp_path, record(s1="longer-1", s2="longer-2")) == {"longer-1", "longer-2"}
    assert save_grid(tmp_path, record(s0="x-0")) == frozenset(), "it is known"
    (found,) = read_grids(tmp_path)
    assert {cell.seed: cell.experiment for cell in found.cells} == {0: "x-0", 1: "longer-1", 2: "longer-2"}


def test_cells_of_other_settings_leave_their_row_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = record(s0="x-0", s1="x-1")
    gspo = replace(before.cells[0], method="gspo", experiment="gspo-0")
    save_grid(tmp_path, replace(before, cells=[*before.cells, gspo]))
    (new,) = record(s1="y-1").cells
    save_grid(tmp_path, replace(before, cells=[replace(new, settings="edited")]))
    (found,) = read_grids(tmp_path)
    assert [cell.experiment for cell in found.cells] == ["y-1", "gspo-0"], "a mean over seeds is of one experiment"
    assert "grid g: 1 cells of other seeds have other settings" in caplog.text
    assert recorded_seeds(tmp_path, "g") == {0, 1} and recorded_seeds(tmp_path, "h") == set()
