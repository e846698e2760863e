"""Weights of ten steps are, to the bit, what they were."""

import json
from pathlib import Path

import pytest

from tests.conftest import made_once
from tests.digests.cases import CASES, FIXTURE, Case, digests, expected, processor, write_pairs

pytestmark = pytest.mark.system


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pair files, and the models that are made once."""
    if json.loads(FIXTURE.read_text("utf-8"))["processor"] != processor():
        pytest.skip(f"the digests are another processor's than {processor()}")
    return made_once(tmp_path_factory, "digests", write_pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_weights_of_ten_steps_are_what_they_were(case: Case, folder: Path) -> None:
    if case.learner == "deepspeed":
        pytest.importorskip("deepspeed")
    assert digests(case, folder) == expected(case)
