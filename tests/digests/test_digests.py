"""Weights of ten steps are, to the bit, what they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import made_once
from tests.digests.cases import FIXTURE, IN_SOAK, QUICK, Case, digests, expected, processor, write_pairs

pytestmark = pytest.mark.system


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pair files, and the models that are made once."""
    if json.loads(FIXTURE.read_text("utf-8"))["processor"] != processor():
        pytest.skip(f"the digests are another processor's than {processor()}")
    return made_once(tmp_path_factory, "digests", write_pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [*QUICK, *(pytest.param(case, marks=pytest.mark.soak) for case in IN_SOAK)],
    ids=lambda case: case.name.replace(" ", "-"),
)
def test_weights_of_ten_steps_are_what_they_were(case: Case, folder: Path) -> None:
    if "deepspeed" in case.name or "ray" in case.name:
        pytest.importorskip(case.learner if case.learner == "deepspeed" else "ray")
    assert digests(case, folder) == expected(case)


def test_methods_have_digests_of_their_own() -> None:
    found = json.loads(FIXTURE.read_text("utf-8"))["cases"]
    assert set(found) == {case.name.rpartition(" ")[0] for case in (*QUICK, *IN_SOAK)}
    one = found["hacpo paper 2 torch"]
    assert [len(value.split()) for value in one.values()] == [10, 10]
    assert found["hacpo_sn paper 2 torch"] != one, "another method, other weights"
