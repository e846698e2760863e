"""Problem sets: what is read, what is refused, and how they are dealt out."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from hacpo_core.config import DataConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.problems import load_problems, step_batch
from hacpo_core.errors import DataError


def jsonl(folder: Path, *lines: object) -> DataConfig:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    return DataConfig(directory=str(folder), train_file="train.jsonl", template="Q: {problem}")


def row(name: str, answer: str = "1") -> dict[str, str]:
    return {"id": name, "problem": "1 \\cdot 1 = \\boxed{?}", "answer": answer}


def test_template_is_filled_and_braces_of_latex_survive(tmp_path: Path) -> None:
    (problem,) = load_problems(jsonl(tmp_path, row("a")))
    assert problem.messages[-1].content == "Q: 1 \\cdot 1 = \\boxed{?}"
    assert (problem.id, problem.answer, problem.source) == ("a", "1", "train.jsonl:1")


def test_numbers_nulls_and_the_mark_of_a_windows_editor_are_read(tmp_path: Path) -> None:
    rows = [{"id": 7, "problem": "1+2", "answer": 3}, {"id": "b", "problem": "x", "answer": None}]
    text = "\r\n".join(json.dumps(row) for row in rows)
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (problem,) = load_problems(DataConfig(source="jsonl", directory=str(tmp_path), train_file="train.jsonl"))
    assert (problem.id, problem.answer) == ("7", "3")


def test_empty_answers_are_dropped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    problems = load_problems(jsonl(tmp_path, row("a"), row("b", " "), row("c", "")))
    assert [problem.id for problem in problems] == ["a"]
    assert "dropped 2 problems whose answer is empty" in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "b", "problem": "x"', r"line 2: no JSON .*; mend or remove the line"),
        ('["b"]', r"line 2: got list, expected a JSON object"),
        ({"id": "b", "problem": "x"}, r"line 2: field 'answer' is missing or no text; the row has id, problem"),
        ({"id": "b", "problem": "x", "answer": [3]}, r"line 2: field 'answer' is missing or no text"),
        (row("a"), r"line 2: the id 'a' occurs twice"),
        (row("a\ud83d"), r"line 2: field 'id': 'a\\ud83d' is no valid Unicode; mend the id"),
        ({**row("b"), "problem": " "}, r"line 2: field 'problem' is empty; mend or remove the row"),
    ],
)
def test_broken_line_is_named_with_its_number(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_problems(jsonl(tmp_path, row("a"), line))


def test_byte_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    config = jsonl(tmp_path, row("a"))
    with (tmp_path / "train.jsonl").open("ab") as file:
        file.write(b'\n{"id": "b", "problem": "caf\xe9", "answer": "1"}')
    with pytest.raises(DataError, match=r"train.jsonl, line 2: not UTF-8 .*; save the file as UTF-8"):
        load_problems(config)


def test_missing_file_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"data.train_file: .*absent.jsonl is not there"):
        load_problems(DataConfig(directory=str(tmp_path), train_file="absent.jsonl"))
    monkeypatch.delenv("HACPO_DATA_DIR", raising=False)
    with pytest.raises(DataError, match=r"set data\.directory or HACPO_DATA_DIR"):
        load_problems(DataConfig())


def test_every_problem_is_dealt_once_an_epoch_in_another_order_each_time() -> None:
    problems = arithmetic.problems("dev")
    dealt = [p.id for step in range(1, 9) for p in step_batch(problems, step=step, size=64, seed=0)]
    half = len(dealt) // 2
    assert Counter(dealt[:half]) == Counter(dealt[half:]) == Counter(p.id for p in problems)
    assert dealt[:half] != dealt[half:]
    assert [p.id for p in step_batch(problems, step=3, size=64, seed=0)] == dealt[128:192]


@pytest.mark.parametrize("size", [3, 7, 8, 9, 10])
def test_no_batch_holds_a_problem_twice_and_every_epoch_all_of_them(size: int) -> None:
    problems = arithmetic.problems("dev")[:10]
    batches = [[p.id for p in step_batch(problems, step=step, size=size, seed=0)] for step in range(1, 31)]
    assert {len(set(batch)) for batch in batches} == {size}
    dealt = [name for batch in batches for name in batch]
    for first in range(0, len(dealt) - 9, 10):
        assert len(set(dealt[first : first + 10])) == 10
    assert [p.id for p in step_batch(problems, step=29, size=size, seed=0)] == batches[28]


def test_batch_larger_than_the_set_is_refused() -> None:
    problems = arithmetic.problems("dev")[:10]
    with pytest.raises(ValueError, match=r"train.problems: got 11"):
        step_batch(problems, step=1, size=11, seed=0)


def test_real_math_problems_load_without_the_two_that_have_no_answer() -> None:
    if not os.environ.get("HACPO_DATA_DIR"):
        pytest.skip("HACPO_DATA_DIR is not set")
    assert len(load_problems(DataConfig())) == 7498
