"""Training sets: what is read, what is refused, what is held out, and how they are dealt out."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

from flows.planning.compose import compose
from hacpo_core.config import DataConfig, TrainSetConfig
from hacpo_core.config.counts import train_set_counts
from hacpo_core.data import arithmetic
from hacpo_core.data.benchmarks import load_benchmark
from hacpo_core.data.problem_sets import read_problems
from hacpo_core.data.training import load_training, step_batch, step_problems
from hacpo_core.errors import ConfigError, DataError
from hacpo_core.records import Problem


def one_set(folder: Path, file: str = "train.jsonl", **fields: Any) -> DataConfig:
    declared = TrainSetConfig(file=file, template="Q: {problem}", **fields)
    return DataConfig(directory=str(folder), train=["mine"], sets={"mine": declared})


def jsonl(folder: Path, *lines: object) -> DataConfig:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    return one_set(folder)


def load_problems(config: DataConfig) -> list[Problem]:
    return load_training(config).problems


def row(name: str, answer: str = "1") -> dict[str, str]:
    return {"id": name, "problem": "1 \\cdot 1 = \\boxed{?}", "answer": answer}


def test_column_inside_another_one_is_named_with_dots(tmp_path: Path) -> None:
    """As the answers of verl's data sets; a column whose own name has dots comes first."""
    nested = {"id": "a", "problem": "1+2", "reward_model": {"ground_truth": "3", "style": "rule"}}
    jsonl(tmp_path, nested)
    pandas.DataFrame([nested]).to_parquet(tmp_path / "train.parquet")
    for file in ("train.jsonl", "train.parquet"):
        (problem,) = load_problems(one_set(tmp_path, file, answer_field="reward_model.ground_truth"))
        assert problem.answer == "3"
    with pytest.raises(DataError, match=r"field 'reward_model.answer' is missing; the row has id, problem, reward_mod"):
        load_problems(one_set(tmp_path, answer_field="reward_model.answer"))
    jsonl(tmp_path, {**nested, "reward_model.ground_truth": "4"})
    (problem,) = load_problems(one_set(tmp_path, answer_field="reward_model.ground_truth"))
    assert problem.answer == "4"


def test_missing_file_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"data.sets.mine.file: .*absent.jsonl does not exist"):
        load_problems(one_set(tmp_path, "absent.jsonl"))
    monkeypatch.delenv("HACPO_DATA_DIR", raising=False)
    with pytest.raises(DataError, match=r"set data\.directory or HACPO_DATA_DIR"):
        load_problems(replace(one_set(tmp_path, "absent.jsonl"), directory=None))


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


def test_real_math_problems_load_without_the_two_that_have_no_answer() -> None:
    if not os.environ.get("HACPO_DATA_DIR"):
        pytest.skip("HACPO_DATA_DIR is not set")
    assert len(load_problems(compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo").data)) == 7498


ROWS = [{"key": f"r{i}", "question": f"{i} + 1", "solution": f"so \\boxed{{{i + 1}}}"} for i in range(20)]
COLUMNS = {
    "id_field": "key",
    "problem_field": "question",
    "answer_field": "solution",
    "answer_form": "boxed",
    "system": "Be brief.",
}


def write_rows(path: Path) -> None:
    if path.suffix == ".parquet":
        pandas.DataFrame(ROWS).to_parquet(path)
    else:
        path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_columns_have_any_name_and_the_form_says_where_the_answer_is(tmp_path: Path, suffix: str) -> None:
    write_rows(tmp_path / f"own.{suffix}")
    problem = load_problems(one_set(tmp_path, f"own.{suffix}", **COLUMNS))[4]
    assert (problem.id, problem.answer) == ("r4", "5")
    assert [(message.role, message.content) for message in problem.messages] == [
        ("system", "Be brief."),
        ("user", "Q: 4 + 1"),
    ]


def test_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "own.jsonl")
    fields: dict[str, str | None] = {}
    for field, name, remedy in (
        ("id_field", "id", r"another column, or to null to number the rows"),
        ("problem_field", "problem", r"another column$"),
        ("answer_field", "answer", r"another column$"),
    ):
        message = rf"line 1: field '{name}' is missing; the row has key, question, solution; .*\.{field} to {remedy}"
        with pytest.raises(DataError, match=message):
            load_problems(one_set(tmp_path, "own.jsonl", **fields))
        fields[field] = {"id_field": None, "problem_field": "question", "answer_field": "solution"}[field]


def two_sets(folder: Path, **fields: Any) -> DataConfig:
    write_rows(folder / "own.jsonl")
    sets = {
        "sums": TrainSetConfig(kind="arithmetic", template="{problem}", share=3.0),
        "own": TrainSetConfig(file="own.jsonl", template="Q: {problem}", **COLUMNS),
    }
    return DataConfig(directory=str(folder), train=["sums", "own"], sets=sets, **fields)


def test_each_step_takes_its_share_of_every_set_and_each_is_asked_in_its_own_way(tmp_path: Path) -> None:
    data = two_sets(tmp_path)
    config = compose("tiny", "hacpo")
    counts = train_set_counts(replace(config, data=data, train=replace(config.train, problems=10)))
    assert counts == {"sums": 8, "own": 2}  # 7.5 and 2.5: equal remainders, the first set
    sets = load_training(data).sets
    dealt = [step_problems(sets, counts, step=step, seed=0) for step in range(1, 11)]
    assert {Counter(problem.id.partition("/")[0] for problem in batch)["own"] for batch in dealt} == {2}
    of_own = [problem.id for batch in dealt for problem in batch if problem.id.startswith("own/")]
    assert Counter(of_own) == {f"own/{row['key']}": 1 for row in ROWS}
    assert {len(problem.messages) for batch in dealt for problem in batch if problem.id.startswith("own/")} == {2}
    assert {len(problem.messages) for batch in dealt for problem in batch if problem.id.startswith("sums/")} == {1}


def test_sets_of_one_file_are_dealt_in_orders_of_their_own(tmp_path: Path) -> None:
    write_rows(tmp_path / "own.jsonl")
    declared = TrainSetConfig(file="own.jsonl", **COLUMNS)
    data = DataConfig(directory=str(tmp_path), train=["a", "b"], sets={"a": declared, "b": declared})
    batch = step_problems(load_training(data).sets, {"a": 20, "b": 20}, step=1, seed=0)
    first, second = ([p.id.partition("/")[2] for p in batch if p.id.startswith(name)] for name in ("a/", "b/"))
    assert sorted(first) == sorted(second)
    assert first != second


def test_development_problems_are_held_out_of_training_and_are_a_benchmark(tmp_path: Path) -> None:
    data = two_sets(tmp_path, development_share=0.2)
    found = load_training(data)
    held = {problem.id for problem in found.development}
    assert len([name for name in held if name.startswith("own/")]) == 4
    assert len(found.sets["own"]) == 16
    assert held.isdisjoint(problem.id for problems in found.sets.values() for problem in problems)
    assert held == {problem.id for problem in load_training(data).development}
    words = ["data.development_share=0.2", "evaluate.during=[development]", "evaluate.final=[]"]
    config = compose("tiny", "hacpo", overrides=words)
    benchmark = load_benchmark("development", config.evaluate.benchmarks["development"], data)
    assert {problem.id for problem in benchmark.problems} == held
    assert {problem.messages[-1].content[:2] for problem in benchmark.problems if problem.id in held} >= {"Q:"}


def test_numbers_and_the_mark_of_a_windows_editor_are_read_and_empty_answers_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"id": 7, "problem": "1 \\cdot 2 = \\boxed{?}", "answer": 3}, row("b", " ")]
    rows.append({"id": "c", "problem": "x", "answer": None})
    text = "\r\n".join(json.dumps(row) for row in rows)
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (problem,) = load_problems(one_set(tmp_path))
    assert problem.messages[-1].content == "Q: 1 \\cdot 2 = \\boxed{?}"
    assert (problem.id, problem.answer, problem.place) == ("7", "3", f"{tmp_path / 'train.jsonl'}, line 1")
    assert "dropped 2 problems with an empty answer" in caplog.text


def test_broken_line_is_named_with_its_number(tmp_path: Path) -> None:
    for line, message in (
        ('{"id": "b", "problem": "x"', r"line 2: not JSON .*; fix or remove the line"),
        ('["b"]', r"line 2: got list, expected a JSON object"),
        ({"id": "b", "problem": "x"}, r"line 2: field 'answer' is missing; the row has id, problem; fix the row"),
        ({**row("b"), "answer": [3]}, r"line 2: field 'answer': got the list \[3\], expected text or a number; fix"),
        ({**row("b"), "answer": {"x": "3"}}, r"'answer': got the mapping {'x': '3'}, .*such as answer\.x"),
        (row("a"), r"line 2: the id 'a' occurs twice"),
        (row("a\ud83d"), r"line 2: field 'id': 'a\\ud83d' is not valid Unicode; fix or remove the row"),
        ({**row("b"), "problem": " "}, r"line 2: field 'problem' is empty; fix or remove the row"),
    ):
        with pytest.raises(DataError, match=message):
            load_problems(jsonl(tmp_path, row("a"), line))
    config = jsonl(tmp_path, row("a"))
    with (tmp_path / "train.jsonl").open("ab") as file:
        file.write(b'\n{"id": "b", "problem": "caf\xe9", "answer": "1"}')
    with pytest.raises(DataError, match=r"train.jsonl, line 2: not UTF-8 .*; save the file as UTF-8"):
        load_problems(config)


def test_training_data_that_cannot_be_is_one_clear_error() -> None:
    for words, message in (
        ("data.train=[]", r"data.train: got none, expected at least one training set"),
        ("data.train=[absent]", r"data.train: got 'absent', expected one of arithmetic, gsm8k, letters, long_letters"),
        ("data.sets.math.template=x", r"data.sets.math.template cannot take effect: math is not in data.train"),
        ("data.sets.arithmetic.template=x", r"data.sets.arithmetic.template: got 'x', expected a text with \{problem"),
        ("data.train=[arithmetic,math] data.sets.math.share=0.001", r"math.share: got 0.001, which is less than one"),
        ("evaluate.during=[development]", r"development.kind: got development with data.development_share=0"),
    ):
        with pytest.raises(ConfigError, match=message):
            compose("tiny", "hacpo", overrides=words.split())


def test_rows_whose_box_is_empty_are_dropped_as_those_without_an_answer(tmp_path: Path) -> None:
    solutions = [r"so $\boxed{4}$", r"so $\boxed{}$", "no box", r"so \boxed 5"]
    rows = [{"problem": f"p{n}", "solution": solution} for n, solution in enumerate(solutions)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = TrainSetConfig(file="t.jsonl", id_field=None, answer_field="solution", answer_form="boxed")
    problems = read_problems("data.sets.t", config, str(tmp_path), drops_unanswerable=True)
    assert [problem.answer for problem in problems] == ["4", "5"]
