"""What the campaign itself must do right, without a round."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hacpo_core.errors import StoreError
from hacpo_core.store.steps import StepStore
from tests.soak.judge import differences, problems_of_end, read_restored
from tests.soak.site import HOOK, ROOT


def test_points_are_compared_with_their_number_unless_a_state_file_was_torn() -> None:
    once, twice = Counter({"loss": 1}), Counter({"loss": 2})
    expected = {"weights": "ab", "MLflow": once}
    assert differences({"weights": "ab", "MLflow": once}, expected, has_new_runs=False) == []
    assert differences({"weights": "ab", "MLflow": twice}, expected, has_new_runs=True) == []
    got = {"weights": "ac", "MLflow": twice}
    assert differences(got, expected, has_new_runs=False) == ["weights differs", "too often in MLflow: loss"]
    missing = {"weights": "ab", "MLflow": Counter[str]()}
    assert differences(missing, expected, has_new_runs=True) == ["not in MLflow: loss"]


def test_torn_file_that_nothing_has_read_is_restored_once_reading_names_it(tmp_path: Path) -> None:
    store, path = StepStore(tmp_path), tmp_path / "steps" / "000001" / "update.qwen.json"
    store.commit(1, "update.qwen", {path.name: {"loss": 0.5}})
    whole = path.read_bytes()
    site: Any = SimpleNamespace(torn=[(path, whole, b"{"), (path, b"{", b"")])

    def read() -> dict[str, Any]:
        value: dict[str, Any] = StepStore(tmp_path).read_value(1, "update.qwen", path.name)
        return value

    path.write_bytes(b"")
    assert read_restored(site, read) == {"loss": 0.5}
    path.write_bytes(b"of somebody else")
    with pytest.raises(StoreError, match="missing or was altered"):
        read_restored(site, read)


POINTS = """
import sys
from pathlib import Path
from hacpo_core.files import write_json
folder = Path(sys.argv[1])
for number in range(3):
    write_json(folder / f"{number}.json", {})
"""


@pytest.mark.parametrize(("point", "written"), [("write:before:2", 1), ("rename:after:1", 1)])
def test_process_kills_itself_at_a_point_and_no_other_does(point: str, written: int, tmp_path: Path) -> None:
    noted = tmp_path / "point"
    environment = {**os.environ, "PYTHONPATH": f"{HOOK}:{ROOT}", "HACPO_SOAK_POINT": f"{point}:{noted}"}
    for name, code in (("first", -signal.SIGKILL), ("second", 0)):
        folder = tmp_path / name
        folder.mkdir()
        done = subprocess.run([sys.executable, "-c", POINTS, str(folder)], env=environment, capture_output=True)
        assert done.returncode == code, done.stderr
        assert len(list(folder.glob("*.json"))) == (written if code else 3)
    assert noted.read_text(encoding="utf-8") == point


def test_command_must_end_with_a_sentence_of_ours() -> None:
    assert problems_of_end(3, ["12 %", "20 %hacpo: the disk is full"], may_abort=False) == []
    assert problems_of_end(1, ["Traceback (most recent call last):", "KeyError: 1"], may_abort=False) == [
        "a command printed a traceback: KeyError: 1"
    ]
    assert problems_of_end(1, ["12 %"], may_abort=False) == [
        "a command ended with 1 and without a sentence of ours: 12 %"
    ]
    assert problems_of_end(-6, ["12 %"], may_abort=False) == ["a command was ended by SIGABRT: 12 %"]
    assert problems_of_end(-6, ["12 %"], may_abort=True) == []
