"""Verdicts of a grid: what is compared with what."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.models.grids.matrix import GridComparisons
from dashboards.models.listing import Runs
from dashboards.report import differences
from dashboards.report.cells import Variant
from dashboards.report.differences import ComparisonSection
from flows.records.gridfile import GridCell, GridRecord
from tests.dashboards.stores import write_grid

GSPO = Variant("gspo")


def verdicts(runs_dir: Path, record: GridRecord, cells: list[GridCell]) -> ComparisonSection:
    runs = Runs(runs_dir)
    return GridComparisons(runs.root_of).of(replace(record, cells=cells), runs.status).verdicts


def test_methods_are_compared_over_the_pairs_that_have_both(runs_dir: Path) -> None:
    both = write_grid(runs_dir, pair="a", last=0.6)
    ours = write_grid(runs_dir, pair="b", methods=("hacpo",), last=0.9)
    found, alone = (verdicts(runs_dir, both, cells) for cells in ([*both.cells, *ours.cells], both.cells))
    assert found.headline is not None and found.headline.theirs == GSPO
    assert found.of()[GSPO].sentence == alone.of()[GSPO].sentence, (
        "HACPO's 0.9 on the other pair is not held against GSPO"
    )


def test_verdicts_so_far_leaves_out_pairs_without_enough_seeds_and_says_so(runs_dir: Path) -> None:
    whole = write_grid(runs_dir, pair="a", seeds=(0, 1, 2))
    begun = write_grid(runs_dir, pair="b", seeds=(0,))
    found = verdicts(runs_dir, whole, [*whole.cells, *begun.cells]).of()[GSPO]
    assert found.difference == verdicts(runs_dir, whole, whole.cells).of()[GSPO].difference
    assert "3 seeds, 1 pair to come)" in found.sentence
    alone = verdicts(runs_dir, begun, begun.cells).of()[GSPO]
    assert alone.word == "one seed"
    assert "interval over problems alone " in alone.sentence and alone.sentence.endswith("problems, seeds aside")


def test_a_training_without_its_responses_has_no_verdict_and_says_why(runs_dir: Path) -> None:
    grid = write_grid(runs_dir, with_answers=False)
    found = verdicts(runs_dir, grid, grid.cells)
    assert found.headline is None
    assert found.of()[GSPO].sentence.startswith("HACPO − GSPO: not yet (responses cannot be read: ")


def test_responses_are_read_once_and_a_grid_is_compared_once(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, runs, calls = write_grid(runs_dir), Runs(runs_dir), Counter[str]()
    for name in ("read_responses", "crossed_difference"):
        inner = getattr(differences, name)

        def counted(*args: Any, name: str = name, inner: Any = inner, **options: Any) -> Any:
            calls[name] += 1
            return inner(*args, **options)

        monkeypatch.setattr(differences, name, counted)
    differences.problem_scores.cache_clear()
    page = GridComparisons(runs.root_of)
    assert page.of(grid, runs.status) is page.of(grid, runs.status)
    assert calls == {"read_responses": len(grid.cells), "crossed_difference": 4}, "two agents, the pair, all pairs"
