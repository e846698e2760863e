"""Gold answers that cannot be read, of a file and of an experiment."""

from pathlib import Path

import pytest

from flows.runs.verifier import GOLDS_FILE, check_golds, known_unreadable_golds
from hacpo_core.records import Gold, Message, Problem
from hacpo_core.verify.pool import VerifierPool


def test_unreadable_gold_answers_are_logged_once_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    golds = ["7", r"\frac{1}{2", r"\frac{1}{0}", r"\frac{1}{2"]
    mine = [Problem(str(n), (Message("user", "?"),), Gold(gold), place="") for n, gold in enumerate(golds)]
    with VerifierPool(num_workers=1, timeout_s=30, memory_mb=1024, style="auto") as pool:
        for _ in range(2):
            check_golds(tmp_path, {"mine": mine, "good": mine[:1]}, pool)
    found = known_unreadable_golds(tmp_path)
    assert found == {"mine": [r"\frac{1}{2", r"\frac{1}{0}"]}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("mine: 2 gold answers cannot be read") and r"'\\frac{1}{2', " in warning
    (tmp_path / GOLDS_FILE).write_text("{", encoding="utf-8")
    assert known_unreadable_golds(tmp_path) == {}
