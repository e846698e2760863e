"""Weights of ten steps are, to the bit, those of the code before the seams: a part of `cases`, for each change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import made_once
from tests.digests.cases import FIXTURE, Case, cases, digests, expected, processor, write_pairs

PART = [
    Case("hacpo", "paper", 2, "torch", "local"),
    Case("gspo_x2", "official", 2, "torch", "local"),
    Case("grpo", "paper", 2, "torch", "local"),
    Case("hacpo", "official", 3, "torch", "local"),
    Case("hacpo", "paper", 2, "deepspeed", "local"),
]
IN_SOAK = [
    Case("hacpo", "official", 2, "torch", "local"),
    Case("gspo_x2", "paper", 2, "torch", "local"),
    Case("naive", "official", 2, "torch", "local"),
    Case("hacpo_no_baseline_omega", "paper", 2, "torch", "local"),
    Case("hacpo", "paper", 1, "torch", "local"),
    Case("hacpo", "paper", 2, "torch", "ray"),
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pair files, and the models that are made once."""
    if json.loads(FIXTURE.read_text("utf-8"))["processor"] != processor():
        pytest.skip(f"the digests are another processor's than {processor()}")
    return made_once(tmp_path_factory, "digests", write_pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [*PART, *(pytest.param(case, marks=pytest.mark.soak) for case in IN_SOAK)],
    ids=lambda case: case.name.replace(" ", "-"),
)
def test_weights_of_ten_steps_are_what_they_were(case: Case, folder: Path) -> None:
    if "deepspeed" in case.name or "ray" in case.name:
        pytest.importorskip(case.learner if case.learner == "deepspeed" else "ray")
    assert digests(case, folder) == expected(case)


def test_every_shipped_method_has_its_digests() -> None:
    found = json.loads(FIXTURE.read_text("utf-8"))["cases"]
    assert {case.name.rpartition(" ")[0] for case in cases()} <= set(found)
    one = found["hacpo paper 2 torch"]
    assert [len(value.split()) for value in one.values()] == [10, 10]
    assert found["naive paper 2 torch"] != one, "another method, other weights"
