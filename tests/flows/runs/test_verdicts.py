"""Verdicts of a run and of a file, doubtful ones first, and gold answers that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from flows.runs.verdicts import verdicts_of_run
from flows.runs.verifier import GOLDS_FILE, check_golds, gold_lines, known_unreadable_golds
from hacpo_core.errors import ConfigError, DataError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import Gold, Message, Problem
from hacpo_core.verify.answers import UNREADABLE
from hacpo_core.verify.doubts import OTHER_NUMBERS, SAME_LETTERS, UNSCORED
from hacpo_core.verify.pool import VerifierPool

ROWS = [
    {"answer": "(3,5)", "completion": r"so \boxed{[3,5]}"},
    {"answer": "0.75", "completion": r"so \boxed{\frac{6}{8}}"},
    {"answer": r"\frac{1}{2", "completion": r"so \boxed{0.5}"},
    {"answer": "7", "completion": r"so \boxed{7}"},
    {"answer": "7", "completion": r"then \boxed{7}"},
    {"answer": 8, "completion": "no answer"},
]


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_file_shows_doubtful_verdicts_first(answers: Path) -> None:
    words = ["audit-verifier", str(answers), "--text-field", "completion", "--timeout-s", "30"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["doubt"], row["gold"], row["num"]) for row in rows[:4]] == [
        (SAME_LETTERS, "(3,5)", 1),
        (OTHER_NUMBERS, "0.75", 1),
        (UNSCORED, r"\frac{1}{2", 1),
        ("", "7", 2),
    ]
    assert rows[2]["reason"] == UNREADABLE
    assert rows[0]["place"] == f"{answers}, line 1"
    shown = CliRunner().invoke(app, [*words, "--num", "1"]).stdout
    assert shown.startswith("6 responses: 3 correct, 1 unscored, 2 wrong\n")
    assert shown.count("gold   ") == 1


def test_file_without_responses_shows_gold_answers_that_cannot_be_read(answers: Path) -> None:
    done = CliRunner().invoke(app, ["audit-verifier", str(answers), "--timeout-s", "30"])
    assert done.exit_code == 0, done.output
    assert "1  unscored" in done.stdout
    assert "gold   \\frac{1}{2\n" in done.stdout


def test_wrong_column_and_unknown_source_are_one_error_each(answers: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit-verifier", str(answers), "--answer-field", "solution"])
    assert isinstance(done.exception, DataError)
    assert "field 'solution' is missing" in str(done.exception)
    done = CliRunner().invoke(app, ["audit-verifier", "nothing", "--runs-dir", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)


@pytest.mark.slow
def test_run_shows_the_recorded_verdicts_of_training_and_evaluation(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    with pytest.raises(ConfigError, match="train it first"):
        verdicts_of_run(planned)
    run_experiment(planned, DirectRunner())
    table = verdicts_of_run(planned)
    assert set(table["status"]) <= {"correct", "wrong"}
    assert set(table[table["status"] == "correct"]["gold"]) <= {"3", *map(str, range(-99, 200))}
    places = " ".join(table["place"])
    assert "step 1, " in places
    assert "test after step 0, " in places
    num_training = 2 * 4 * 4  # agents, problems, samples
    assert table["num"].sum() > num_training
    assert known_unreadable_golds(planned.root) == {}
    assert (planned.root / GOLDS_FILE).is_file()


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
