"""The embedded letter counts: how often a letter occurs in a word of random letters, for small language models.

The length of a word and the answer are uniform, the letters random. A solution says of each letter whether it is the
one that is counted. The idea is that of the recipe char_count of verl, whose words have up to 20 letters.
"""

from collections.abc import Sequence
from functools import cache
from string import ascii_lowercase

from hacpo_core.data.word_problems import Exercise, Split, embedded_problem, part_of
from hacpo_core.records import Problem
from hacpo_core.seeds import generator

LENGTHS = {"letters": (3, 6), "long_letters": (5, 20)}
"""shortest and longest word of each task, letters"""
_NUM_DRAWN = 10_000


def _draw(task: str, number: int) -> Exercise:
    rng, (shortest, longest) = generator(task, number), LENGTHS[task]
    length = int(rng.integers(shortest, longest + 1))
    answer = int(rng.integers(length + 1))
    letter = ascii_lowercase[rng.integers(len(ascii_lowercase))]
    others = rng.choice(list(ascii_lowercase.replace(letter, "")), length - answer).tolist()
    word = rng.permutation([letter] * answer + others).tolist()
    solution = ", ".join(f"{each} {'yes' if each == letter else 'no'}" for each in word)
    return Exercise(f"Count the letter {letter} in {'-'.join(word)}.", f"{solution}: {answer}", answer)


@cache
def _drawn(task: str) -> tuple[Exercise, ...]:
    exercises = {exercise.text: exercise for exercise in (_draw(task, number) for number in range(_NUM_DRAWN))}
    return tuple(exercises.values())


def split_exercises(task: str, split: Split) -> Sequence[Exercise]:
    """Exercises of one split of a task, all texts distinct: 256 for "test", 256 for "dev", the others for "train"."""
    return part_of(_drawn(task), split)


def problems(task: str, split: Split) -> list[Problem]:
    """The split as problems, without any prompt template."""
    return [embedded_problem(task, exercise.text, exercise.answer, split) for exercise in split_exercises(task, split)]
