"""Files of data as others write them: what is read, and one sentence for each value that cannot be."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hacpo_core.config import TrainSetConfig
from hacpo_core.data.problem_sets import read_problems, with_prompts
from hacpo_core.errors import DataError
from hacpo_core.records import Message, Problem

BAD_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\5\0\0\0"), pa.py_buffer(b"acaf\xe9")]
)
LATE = pa.array([0, 10**15], pa.timestamp("s"))
"""the second one in the year 31,690,708"""


def read(folder: Path, file: str, **fields: Any) -> list[Problem]:
    config = TrainSetConfig(file=file, template="{problem}", **fields)
    return with_prompts(read_problems("data.sets.mine", config, str(folder), drops_unanswerable=True), config)


def parquet(folder: Path, **columns: Any) -> str:
    names = {"id": ["a", "b"], "problem": ["1+1", "1+2"], "answer": ["2", "3"]}
    pq.write_table(pa.table(names | columns), folder / "p.parquet")
    return "p.parquet"


def test_columns_that_nobody_names_are_not_converted(tmp_path: Path) -> None:
    file = parquet(tmp_path, note=BAD_TEXT, made=LATE, extra=pa.array([{"at": None}, {"at": None}]))
    assert [problem.answer for problem in read(tmp_path, file)] == ["2", "3"]


def test_value_that_python_cannot_hold_is_named_with_its_row_and_column(tmp_path: Path) -> None:
    for columns, message in (
        ({"problem": BAD_TEXT}, r"p.parquet, row 2: field 'problem': got a value of type string that cannot be read"),
        (
            {"answer": LATE},
            r"p.parquet, row 2: field 'answer': got a value of type timestamp\[ms\] that cannot be read",
        ),
        ({"answer": [[1], [2]]}, r"p.parquet, row 1: field 'answer': got the list \[1\], expected text or a number"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, parquet(tmp_path, **columns))


def test_numbers_of_any_length_and_decimals_are_answers(tmp_path: Path) -> None:
    decimals = parquet(tmp_path, answer=pa.array([Decimal("7.50"), Decimal("70000.00")], pa.decimal128(9, 2)))
    assert [problem.answer for problem in read(tmp_path, decimals)] == ["7.5", "70000"]
    rows = [{"id": "a", "problem": "x", "answer": 10**400}, {"id": "b", "problem": "y", "answer": 70000.0}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [problem.answer for problem in read(tmp_path, "p.jsonl")] == [str(10**400), "70000"]


def test_unit_or_tolerance_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    wrong: list[tuple[str, object]] = [("error", value) for value in (True, "1_0", 10**400, [1])]
    for field, value in (*wrong, ("unit", float("nan")), ("unit", ["cm"])):
        row = {"id": "a", "problem": "x", "answer": "1", "unit": None, "error": "", field: value}
        (tmp_path / "p.jsonl").write_text(json.dumps(row), encoding="utf-8")
        with pytest.raises(DataError, match=rf"p.jsonl, line 1: field '{field}': got .*, expected") as caught:
            read(tmp_path, "p.jsonl", unit_field="unit", tolerance_field="error")
        assert len(str(caught.value)) < 300


def test_prompt_of_messages_is_read_as_verl_writes_it(tmp_path: Path) -> None:
    user, system = {"role": "user", "content": "1+1"}, {"role": "system", "content": "Add."}
    answers = [{"ground_truth": "2", "style": "rule"}] * 2
    file = parquet(tmp_path, prompt=[[user], [system, user]], reward_model=answers)
    fields = {"problem_field": "prompt", "answer_field": "reward_model.ground_truth"}
    first, second = read(tmp_path, file, **fields)
    assert (first.messages, first.answer) == ((Message("user", "1+1"),), "2")
    assert second.messages == (Message("system", "Add."), Message("user", "1+1"))
    assert read(tmp_path, file, system="Mine.", **fields)[1].messages[0] == Message("system", "Mine.")
    answered = parquet(tmp_path, prompt=[[user, {"role": "assistant", "content": "2"}], [user]], reward_model=answers)
    with pytest.raises(
        DataError, match=r"row 1: field 'prompt': got the list .*, expected text, or messages of a user"
    ):
        read(tmp_path, answered, **fields)


def test_compressed_lines_are_read_and_half_a_file_is_named(tmp_path: Path) -> None:
    rows = "\n".join(json.dumps({"id": n, "problem": "x", "answer": n}) for n in range(200)).encode()
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(rows))
    assert len(read(tmp_path, "p.jsonl.gz")) == 200
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(rows)[:-60])
    with pytest.raises(DataError, match=r"p.jsonl.gz is not a readable gzip file .*; download it again"):
        read(tmp_path, "p.jsonl.gz")


def test_gold_behind_hashes_is_the_rest_of_its_line(tmp_path: Path) -> None:
    row = {"id": "a", "problem": "x", "answer": "So 72.\n#### 72\nSource: a book."}
    (tmp_path / "p.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert read(tmp_path, "p.jsonl", answer_form="hashes")[0].answer == "72"
