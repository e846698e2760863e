"""Worked solutions: read from files and embedded tasks, and brought into the form that a model should write."""

import json
from dataclasses import replace
from pathlib import Path

from hacpo_core.config import WarmUpConfig
from hacpo_core.data import word_problems
from hacpo_core.records import Message
from hacpo_core.warm_up.solutions import read_solutions

FILE = WarmUpConfig(file="s.jsonl", template="{problem}")


def write(folder: Path, *solutions: str) -> None:
    rows = [json.dumps({"problem": "How many?", "solution": solution}) for solution in solutions]
    (folder / "s.jsonl").write_text("\n".join(rows), encoding="utf-8")


def test_solutions_of_a_file_are_its_column(tmp_path: Path) -> None:
    write(tmp_path, "6\n7", "8")
    assert [solution.text for solution in read_solutions("f", FILE, str(tmp_path))] == ["6\n7", "8"]


def test_embedded_tasks_give_their_training_split_alone() -> None:
    words = read_solutions("f", WarmUpConfig(source="word_problems", template="{problem}", system="Add."), None)
    train = {problem.text for problem in word_problems.split_problems("train")}
    assert {solution.messages[-1].content for solution in words} == train
    assert words[0].messages[0] == Message("system", "Add.")
    sums = WarmUpConfig(source="arithmetic", num_demonstrations=50, template="{problem}")
    first, again, other = (read_solutions("f", replace(sums, seed=seed), None) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 50
