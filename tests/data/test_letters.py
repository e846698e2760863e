"""The embedded letter counts: distinct, right, split for good."""

import re

import pytest

from hacpo_core.data.letters import LENGTHS, problems, split_exercises

SPLITS = ("train", "dev", "test")
FIRST = {
    "letters": ("Count the letter d in d-s-d-y-m.", 2),
    "long_letters": ("Count the letter v in v-v-v-v-v-v-d-v-v-v-v-s-v-i-v-x-v.", 13),
}


@pytest.mark.parametrize("task", LENGTHS)
def test_solutions_are_right_and_texts_distinct(task: str) -> None:
    texts = [exercise.text for split in SPLITS for exercise in split_exercises(task, split)]
    assert len(set(texts)) == len(texts) > 7000
    for exercise in split_exercises(task, "train")[:500]:
        found = re.fullmatch(r"Count the letter ([a-z]) in ([a-z-]+)\.", exercise.text)
        assert found, exercise
        word = found[2].split("-")
        said = exercise.solution.rpartition(": ")[0].split(", ")
        assert said == [f"{letter} {'yes' if letter == found[1] else 'no'}" for letter in word]
        assert exercise.answer == word.count(found[1]) and exercise.solution.endswith(f": {exercise.answer}")
        assert LENGTHS[task][0] <= len(word) <= LENGTHS[task][1]


def test_first_problems_are_the_same_in_every_experiment() -> None:
    """Another order would move test problems into training: a new task, under a new name."""
    for task, first in FIRST.items():
        exercise = split_exercises(task, "test")[0]
        assert (exercise.text, exercise.answer) == first
        assert problems(task, "test")[0].messages[-1].content == exercise.text
