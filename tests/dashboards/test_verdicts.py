"""Verdicts of a grid: what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.models.grids.comparison import Comparer
from dashboards.models.grids.verdicts import verdicts_of
from dashboards.models.listing import Runs
from dashboards.report.cells import Variant
from tests.dashboards.stores import write_grid


def test_methods_are_compared_over_the_pairs_that_have_both(runs_dir: Path) -> None:
    both = write_grid(runs_dir, pair="a", last=0.6)
    ours = write_grid(runs_dir, pair="b", methods=("hacpo",), last=0.9)
    record = replace(both, cells=[*both.cells, *ours.cells])
    runs = Runs(runs_dir)
    comparers = {pair: Comparer(record, pair, runs.status) for pair in ("a", "b")}
    verdicts, alone = verdicts_of(comparers), verdicts_of({"a": comparers["a"]})
    assert verdicts.best_baseline == Variant("gspo")
    found, expected = verdicts.of()[Variant("gspo")], alone.of()[Variant("gspo")]
    assert found.difference == expected.difference, "HACPO's 0.9 on the other pair is not held against GSPO"


def test_verdicts_so_far_leaves_out_pairs_without_enough_seeds_and_says_so(runs_dir: Path) -> None:
    whole = write_grid(runs_dir, pair="a", seeds=(0, 1, 2))
    begun = write_grid(runs_dir, pair="b", seeds=(0,))
    runs = Runs(runs_dir)
    record = replace(whole, cells=[*whole.cells, *begun.cells])
    comparers = {pair: Comparer(record, pair, runs.status) for pair in ("a", "b")}
    found = verdicts_of(comparers).of()[Variant("gspo")]
    assert found.difference == verdicts_of({"a": comparers["a"]}).of()[Variant("gspo")].difference
    assert found.text.endswith("3 seeds, 1 pair to come")
    alone = verdicts_of({"b": comparers["b"]}).of()[Variant("gspo")]
    assert (alone.word, alone.difference.num_seeds) == ("one seed", 1)
    # errors of .03 for two agents and two methods, in points: 1.96 x sqrt(4 x 3^2) / 2
    assert alone.difference.high - alone.difference.value == pytest.approx(5.88, abs=0.001)
    assert "95 % interval over problems " in alone.text and alone.text.endswith("1 seed")
