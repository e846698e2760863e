"""Worked solutions: read from files and embedded tasks, and brought into the form that a model should write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hacpo_core.config import WarmUpConfig
from hacpo_core.data import word_problems
from hacpo_core.errors import DataError
from hacpo_core.records import Message
from hacpo_core.warm_up.solutions import read_solutions, without_hashes

FILE = WarmUpConfig(file="s.jsonl", template="{problem}", solution_form="hashes")
GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"


def write(folder: Path, *solutions: str) -> None:
    rows = [json.dumps({"problem": "How many?", "solution": solution}) for solution in solutions]
    (folder / "s.jsonl").write_text("\n".join(rows), encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GSM8K, "Natalia sold 48/2 = 24 clips in May.\nIn all 48+24 = 72.\nThe answer is \\boxed{72}."),
        ("a\n#### 1,234,567 \n", "a\nThe answer is \\boxed{1234567}."),
        ("#### Step 1\nb\n#### -3", "#### Step 1\nb\nThe answer is \\boxed{-3}."),
        ("#### 5", "The answer is \\boxed{5}."),
        ("no mark at all", "no mark at all"),
    ],
)
def test_gsm8ks_marks_become_a_box(text: str, expected: str) -> None:
    assert without_hashes(text) == expected


def test_solutions_of_a_file_are_read_in_its_form(tmp_path: Path) -> None:
    write(tmp_path, GSM8K, "7\n#### 7")
    found = read_solutions("f", FILE, str(tmp_path))
    assert [solution.text.splitlines()[-1] for solution in found] == [
        "The answer is \\boxed{72}.",
        "The answer is \\boxed{7}.",
    ]
    whole = read_solutions("f", replace(FILE, solution_form="whole"), str(tmp_path))
    assert whole[0].text == GSM8K


def test_solution_without_the_forms_mark_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, GSM8K, "The answer is 7.")
    with pytest.raises(DataError, match=r"s.jsonl, line 2: field 'solution' has no line that begins with ####"):
        read_solutions("f", FILE, str(tmp_path))


def test_marks_that_would_be_trained_on_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, GSM8K, GSM8K, "plain")
    read_solutions("pair.agents.a.warm_up", replace(FILE, solution_form="whole"), str(tmp_path))
    assert "pair.agents.a.warm_up: 2 of 3 solutions end in GSM8K's ####" in caplog.text
    caplog.clear()
    write(tmp_path, GSM8K, "plain", "plain")
    read_solutions("f", replace(FILE, solution_form="whole"), str(tmp_path))
    assert caplog.text == ""


def test_embedded_tasks_give_their_training_split_alone() -> None:
    words = read_solutions("f", WarmUpConfig(source="word_problems", template="{problem}", system="Add."), None)
    train = {problem.text for problem in word_problems.split_problems("train")}
    assert {solution.messages[-1].content for solution in words} == train
    assert words[0].messages[0] == Message("system", "Add.")
    sums = WarmUpConfig(source="arithmetic", num_demonstrations=50, template="{problem}")
    first, again, other = (read_solutions("f", replace(sums, seed=seed), None) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 50
