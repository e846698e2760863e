"""Gold answers that cannot be read, of a file and of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.runs.verifier import GOLDS_FILE, check_golds, gold_lines, known_unreadable_golds
from hacpo_core.errors import ConfigError, DataError
from hacpo_core.records import Gold, Message, Problem
from hacpo_core.verify.pool import VerifierPool

GOLDS = ("(3,5)", "0.75", r"\frac{1}{2", "7", "7", 8)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps({"answer": gold}) for gold in GOLDS), encoding="utf-8")
    return path


def test_file_shows_gold_answers_that_cannot_be_read(answers: Path) -> None:
    done = CliRunner().invoke(app, ["audit-verifier", str(answers)])
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    assert first.startswith("1 of ") and second.endswith(": \\frac{1}{2")


def test_wrong_column_and_unknown_source_are_one_error_each(answers: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit-verifier", str(answers), "--answer-field", "solution"])
    assert isinstance(done.exception, DataError)
    assert "field 'solution' is missing" in str(done.exception)
    done = CliRunner().invoke(app, ["audit-verifier", "nothing", "--runs-dir", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)


def test_unreadable_gold_answers_are_logged_once_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    golds = ["7", r"\frac{1}{2", r"\frac{1}{0}", r"\frac{1}{2"]
    mine = [Problem(str(n), (Message("user", "?"),), Gold(gold), place="") for n, gold in enumerate(golds)]
    with VerifierPool(num_workers=1, timeout_s=30, memory_mb=1024, style="auto") as pool:
        for _ in range(2):
            check_golds(tmp_path, {"mine": mine, "good": mine[:1]}, pool)
    found = known_unreadable_golds(tmp_path)
    assert found == {"mine": [r"\frac{1}{2", r"\frac{1}{0}"]}
    assert [record.getMessage() for record in caplog.records] == gold_lines(found)
    assert gold_lines(found)[0].startswith("mine: 2 gold answers cannot be read")
    (tmp_path / GOLDS_FILE).write_text("{", encoding="utf-8")
    assert known_unreadable_golds(tmp_path) == {}
