"""The embedded word problems: distinct, right, split for good."""

import re

from hacpo_core.data.word_problems import problems, split_problems

SPLITS = ("train", "dev", "test")


def test_splits_are_disjoint_and_all_texts_distinct() -> None:
    texts = [problem.text for split in SPLITS for problem in split_problems(split)]
    assert len(set(texts)) == len(texts)
    assert [len(split_problems(split)) for split in SPLITS] == [len(texts) - 512, 256, 256]
    assert len(texts) == 11 * 120


def test_every_solution_is_right_and_ends_in_its_answer() -> None:
    for split in SPLITS:
        for problem in split_problems(split):
            found = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+)", problem.solution)
            assert found, problem
            a, sign, b, result = found.groups()
            exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[sign]
            assert exact == int(result) == problem.answer > 0
            assert {a, b} <= set(re.findall(r"\d+", problem.text)), "the numbers are in the question"


def test_first_problems_are_the_same_in_every_experiment() -> None:
    """Another order would move test problems into training: a new task, under a new name."""
    assert problems("test")[0].messages[-1].content == split_problems("test")[0].text
    assert [(p.text, p.answer) for p in split_problems("test")[:2]] == FIRST


FIRST = [
    ("A shop sold 15 cards on Monday and 20 on Tuesday. How many cards did it sell in all?", 35),
    ("Dara needs 17 coins and has 5. How many coins are missing?", 12),
]
