"""What the campaign itself must do right, without a round."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hacpo_core.errors import StoreError
from hacpo_core.store.steps import StepStore
from tests.soak.campaign import next_setup
from tests.soak.judge import differences, problems_of_end, read_restored
from tests.soak.setups import Setup
from tests.soak.site import HOOK, ROOT, clock_library
from tests.soak.table import table_of


def campaign(seed: int, *faults: tuple[str, str]) -> dict[str, Any]:
    hits = [{"fault": fault, "victim": victim, "at_s": 1.0} for fault, victim in faults]
    one = {"kind": "grid", "seed": 3, "faults": hits, "num_calls": 2, "recovery_s": 8.0, "problems": []}
    return {"commit": "abc", "seed": seed, "minutes": 5, "seconds": 120.0, "cores": 2, "rounds": [one]}


def test_table_adds_up_campaigns_and_counts_kills_apart() -> None:
    first = campaign(1, ("SIGKILL", "run"), ("SIGKILL at a point", "rename:after:7"), ("SIGTERM", "run"))
    text = table_of([first, campaign(2, ("SIGKILL", "server"))])
    assert text.startswith(
        "Seeds 1 (commit `abc`), 2 (commit `abc`), 2 cores, 4 minutes: **3 kills and 1 other faults** in 2"
    )
    assert "| grid | 2 | 2 | 3 | 1 | 4 | 8, 8 |" in text
    assert "| SIGKILL | 2 | run 1, server 1 |" in text


def test_rounds_at_once_are_of_different_kinds_and_one_of_them_restarts_postgresql() -> None:
    plain, first, second = Setup("plain"), Setup("first", has_postgres=True), Setup("second", has_postgres=True)
    setups = (plain, first, second)
    assert next_setup(setups, ["plain"], [plain]) is first
    assert next_setup(setups, ["plain", "first"], [plain, first]) is None
    assert next_setup(setups, ["plain", "plain", "first"], [first]) is plain


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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_clock_moves_time_and_datetime_alike_and_leaves_the_monotonic_clock(tmp_path: Path) -> None:
    library = clock_library(tmp_path)
    (tmp_path / "clock").write_bytes(struct.pack("q", 10**9))
    program = (
        "import datetime, time, pandas; print(time.time(), datetime.datetime.now().timestamp(), "
        "pandas.Timestamp.now().timestamp(), time.monotonic())"
    )
    own = {"LD_PRELOAD": str(library), "HACPO_SOAK_CLOCK": str(tmp_path / "clock")}
    command = [sys.executable, "-c", program]
    shifted = subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout.split()
    plain = subprocess.run(command, env={}, capture_output=True, text=True, check=True).stdout.split()
    moved = [round((float(one) - float(other)) / 10**9, 3) for one, other in zip(shifted, plain, strict=True)]
    assert moved == [1.0, 1.0, 1.0, 0.0]


POINTS = """
import sys
from pathlib import Path
from hacpo_core.files import write_json
folder = Path(sys.argv[1])
for number in range(3):
    write_json(folder / f"{number}.json", {})
"""


@pytest.mark.parametrize(("point", "written"), [("write:before:2", 1), ("write:after:2", 2), ("rename:after:1", 1)])
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
