"""The record of a grid: what all calls together asked for, and of which file."""

from pathlib import Path

from flows.records.gridfile import GridCell, GridRecord, read_grids, save_grid


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
