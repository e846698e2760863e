"""Benchmarks: from local files and the hub, with every fault of a file named in one sentence."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from flows.planning.compose import benchmark
from flows.planning.declarations import available
from hacpo_core.config import BenchmarkConfig, DataConfig, HubConfig
from hacpo_core.data import problem_sets
from hacpo_core.data.benchmarks import Benchmark, load_benchmark
from hacpo_core.errors import DataError
from hacpo_core.records import Gold
from hacpo_core.verify.pool import VerifierPool

COUNTS = {
    "math500": 500,
    "math": 5000,
    "gsm8k": 1319,
    "aime2025": 30,
    "amc23": 40,
    "minerva": 272,
    "olympiadbench": 675,
}
ROWS: list[dict[str, Any]] = [
    {"id": "a", "problem": "1+1", "answer": "2", "unit": "cm", "error": None},
    {"id": "b", "problem": r"\frac{1}{2}", "answer": "27.0", "unit": None, "error": "1e-1"},
    {"id": "c", "problem": "roots", "answer": "$1,2$", "unit": "", "error": ""},
]
CONFIG = BenchmarkConfig(file="b.jsonl", count=3, template="Q: {problem}", unit_field="unit", tolerance_field="error")


@pytest.fixture(autouse=True)
def no_silent_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_sets, "UNREACHABLE_HUBS", set())


def write(folder: Path, *lines: object) -> None:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "b.jsonl").write_text(text, encoding="utf-8")


def load(folder: Path, config: BenchmarkConfig = CONFIG) -> Benchmark:
    return load_benchmark("mine", config, DataConfig(directory=str(folder)))


def test_rows_become_problems_with_all_that_is_known_of_the_answer(tmp_path: Path) -> None:
    write(tmp_path, *ROWS)
    problems = load(tmp_path).problems
    assert [problem.gold for problem in problems] == [Gold("2", unit="cm"), Gold("27.0", tolerance=0.1), Gold("$1,2$")]
    assert problems[1].messages[-1].content == r"Q: \frac{1}{2}"
    assert [problem.id for problem in load(tmp_path, replace(CONFIG, limit=2)).problems] == ["a", "b"]


def test_parquet_gives_the_same_problems(tmp_path: Path) -> None:
    write(tmp_path, *ROWS)
    pd.DataFrame(ROWS).to_parquet(tmp_path / "b.parquet")
    table = load(tmp_path, replace(CONFIG, file="b.parquet")).problems
    assert [(p.id, p.messages, p.gold) for p in table] == [(p.id, p.messages, p.gold) for p in load(tmp_path).problems]
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"b.parquet is not a readable Parquet file"):
        load(tmp_path, replace(CONFIG, file="b.parquet"))


def test_bad_row_is_named_with_file_line_and_remedy(tmp_path: Path) -> None:
    fine = {**ROWS[0], "id": "d"}
    for line, message in (
        ({"id": "d", "answer": "1"}, r"line 3: field 'problem' is missing; the row has id, answer"),
        ({**fine, "answer": " "}, r"line 3: field 'answer' has no answer \(whole\); fix or remove"),
        ({**fine, "id": "b"}, r"line 3: the id 'b' occurs twice; make ids unique"),
        ({"id": "d", "problem": "x", "answer": "1"}, r"line 3: field 'unit' is missing; the row has id, problem"),
        ({**fine, "error": "a bit"}, r"line 3: field 'error': got 'a bit', expected an absolute error"),
        ({**fine, "error": -1}, r"line 3: field 'error': got -1"),
        ('{"id": "d", "problem": "x", "answer": NaN}', r"line 3: field 'answer': got nan, expected text or a finite"),
    ):
        write(tmp_path, *ROWS[:2], line)
        with pytest.raises(DataError, match=f"{tmp_path / 'b.jsonl'}, {message}"):
            load(tmp_path)


def test_wrong_count_is_named_with_the_expected_one(tmp_path: Path) -> None:
    write(tmp_path, *ROWS[:2])
    with pytest.raises(DataError, match=r"b.jsonl: got 2 problems, expected 3; get the complete file, or set"):
        load(tmp_path)
    assert len(load(tmp_path, replace(CONFIG, count=None)).problems) == 2


HUB = replace(
    CONFIG,
    unit_field=None,
    tolerance_field=None,
    hub=HubConfig("owner/set", "data/t.parquet", None, "question", "answer", "hashes"),
)


def test_file_of_the_hub_is_read_by_its_own_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "t.parquet"
    pd.DataFrame({"question": ["x", "y", "z"], "answer": [["so\n#### 4\nso"], ["#### 5"], ["6 #### 7"]]}).to_parquet(
        copy
    )
    asked: list[Any] = []
    monkeypatch.setattr(problem_sets, "hf_hub_download", lambda *args, **options: asked.append((args, options)) or copy)
    assert [(p.id, p.answer) for p in load(tmp_path, HUB).problems] == [
        ("mine/1", "4"),
        ("mine/2", "5"),
        ("mine/3", "7"),
    ]
    options = {"repo_type": "dataset", "revision": None, "local_files_only": False}
    assert asked == [(("owner/set", "data/t.parquet"), options)]
    write(tmp_path, *ROWS)
    assert [p.id for p in load(tmp_path, HUB).problems] == ["a", "b", "c"], "a local file comes first"


def test_hub_that_cannot_be_reached_names_the_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(problem_sets, "hf_hub_download", unreachable)
    message = rf"owner/set/data/t.parquet cannot be downloaded \(LocalEntryNotFoundError\); put the file at {tmp_path}"
    message += ".*, or leave it out"
    with pytest.raises(DataError, match=message):
        load(tmp_path, HUB)


def test_hub_is_tried_without_a_data_folder_and_its_cache_alone_once_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def unreachable(*args: Any, local_files_only: bool = False, **options: Any) -> str:
        asked.append(local_files_only)
        raise LocalEntryNotFoundError("no network")

    monkeypatch.delenv("HACPO_DATA_DIR", raising=False)
    monkeypatch.setattr(problem_sets, "hf_hub_download", unreachable)
    for name in ("one", "two"):
        with pytest.raises(DataError, match=rf"{name}.file: data/b.jsonl does not exist and owner/se"):
            load_benchmark(name, HUB, DataConfig())
    assert asked == [False, True]


def real(name: str) -> Benchmark:
    if not os.environ.get("HACPO_DATA_DIR"):
        pytest.skip("HACPO_DATA_DIR is not set: no benchmark files here")
    return load_benchmark(name, benchmark(name), DataConfig())


def test_the_seven_are_declared() -> None:
    assert set(COUNTS) <= set(available("benchmark"))
    assert {name: benchmark(name).count for name in COUNTS} == COUNTS
    assert {name for name in COUNTS if benchmark(name).metric != "avg"} == {"aime2025"}
    assert (benchmark("aime2025").metric, benchmark("aime2025").num_samples) == ("bootstrap_best", 30)
    unpinned = [name for name in COUNTS if not re.fullmatch("[0-9a-f]{40}", str(benchmark(name).hub.revision))]
    assert not unpinned, "a published score needs the same problems"


@pytest.mark.parametrize("name", COUNTS)
def test_every_gold_answer_of_the_paper_verifies_against_itself_boxed(name: str) -> None:
    problems = real(name).problems
    assert len(problems) == COUNTS[name]
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=1024, style="boxed") as pool:
        verdicts = pool.verify([rf"so \boxed{{{problem.answer}}}." for problem in problems], [p.gold for p in problems])
    assert [p.id for p, verdict in zip(problems, verdicts, strict=True) if verdict.status != "correct"] == []


def test_olympiadbench_says_units_and_tolerance() -> None:
    golds = {problem.id: problem.gold for problem in real("olympiadbench").problems}
    assert sum(bool(gold.unit) for gold in golds.values()) == 8
    assert golds["olympiadbench/2592"] == Gold("4.2", unit="%", tolerance=0.1)


OLYMPIAD = {
    "olympiadbench/2592": ([r"4.2\%", "4.3", "4.1%", "0.042"], ["4.4", "0.1", "42"]),
    "olympiadbench/2419": (["166 cm^2", r"166\text{ cm}^2", "166"], ["167 cm^2", "166 + x"]),
    "olympiadbench/2253": (["45", r"45\text{ minutes}", "45 min"], ["46 minutes", "54"]),
    "olympiadbench/2426": ([r"\frac{600}{7}\text{ km/h}", "600/7"], ["85.7", r"\frac{7}{600}"]),
}


def test_right_and_wrong_variants_of_olympiad_answers_are_told_apart() -> None:
    golds = {problem.id: problem.gold for problem in real("olympiadbench").problems}
    cases = [
        (variant, golds[name], status)
        for name, parts in OLYMPIAD.items()
        for variants, status in zip(parts, ("correct", "wrong"), strict=True)
        for variant in variants
    ]
    many = next(gold for gold in golds.values() if gold.answer == "$(1,8,19), (2,7,13), (4,5,7)$")
    cases += [("(4,5,7), (1,8,19), (2,7,13)", many, "correct"), ("(4,7,5), (1,8,19), (2,7,13)", many, "wrong")]
    repeated = next(gold for gold in golds.values() if gold.answer == "-2,-2")
    cases += [("-2, -2", repeated, "correct"), ("-2", repeated, "wrong")]
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=1024, style="boxed") as pool:
        verdicts = pool.verify([rf"\boxed{{{variant}}}" for variant, _, _ in cases], [gold for _, gold, _ in cases])
    got = [(variant, verdict.status) for (variant, _, _), verdict in zip(cases, verdicts, strict=True)]
    assert got == [(variant, status) for variant, _, status in cases]
