"""The record of a grid: what all calls together asked for, and of which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.records.gridfile import GridCell, GridRecord, read_grids, save_grid
from hacpo_core.errors import ConfigError


def record(source: str, **experiments: str) -> GridRecord:
    """A grid "g" with a cell for each seed."""
    cells = [GridCell("p", "hacpo", "", int(seed.removeprefix("s")), "a", name) for seed, name in experiments.items()]
    return GridRecord("g", "A grid", "plain", ["dev"], cells, source)


def test_record_is_the_union_of_what_was_asked_and_the_later_experiment_of_a_cell(tmp_path: Path) -> None:
    assert save_grid(tmp_path, record("g", s0="x-0", s1="x-1")) == {"x-0", "x-1"}
    assert save_grid(tmp_path, record("g", s1="longer-1", s2="longer-2")) == {"longer-1", "longer-2"}
    assert save_grid(tmp_path, record("g", s0="x-0")) == frozenset(), "it is known"
    (found,) = read_grids(tmp_path)
    assert {cell.seed: cell.experiment for cell in found.cells} == {0: "x-0", 1: "longer-1", 2: "longer-2"}


def test_two_files_of_one_name_do_not_overwrite_each_others_record(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours" / "g.yaml", tmp_path / "theirs" / "g.yaml"
    for path in (ours, theirs):
        path.parent.mkdir()
        path.touch()
    runs_dir = tmp_path / "runs"
    save_grid(runs_dir, record(str(ours), s1="x-1"))
    for other in (str(theirs), "g"):
        with pytest.raises(ConfigError, match=f"is the record of {ours}, got {other}; rename one of the grids"):
            save_grid(runs_dir, record(other, s0="y-0"))
    ours.unlink()  # it was moved
    assert save_grid(runs_dir, record(str(theirs), s0="y-0")) == {"y-0"}
    (found,) = read_grids(runs_dir)
    assert (found.source, found.experiments) == (str(theirs), {"y-0", "x-1"})
