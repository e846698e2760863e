"""The embedded word problems: sums, differences, products and quotients of small numbers, bare or in one sentence.

A question is a sentence or two, and its solution one calculation, so that a small language model reads, warms up and
learns on them in minutes. The answer is the last number. Problems are generated; all texts are distinct.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

from hacpo_core.records import Gold, Message, Problem
from hacpo_core.seeds import derive_seed

Split = Literal["train", "dev", "test"]
NUM_DEV = NUM_TEST = 256
_Item = TypeVar("_Item")
_PER_FORM = 120
"""problems of each question's form"""
_SUMS = (
    "What is {a} + {b}?",
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    "A shop sold {a} {things} on Monday and {b} on Tuesday. How many {things} did it sell in all?",
)
_DIFFERENCES = (
    "What is {a} - {b}?",
    "{name} had {a} {things} and gave {b} away. How many {things} are left?",
    "{name} needs {a} {things} and has {b}. How many {things} are missing?",
)
_PRODUCTS = (
    "What is {a} times {b}?",
    "There are {a} boxes with {b} {things} in each. How many {things} are there in all?",
    "{name} buys {b} {things} a day for {a} days. How many {things} does {name} buy?",
)
_QUOTIENTS = (
    "What is {a} divided by {b}?",
    "{a} {things} are shared equally among {b} children. How many {things} does each child get?",
)
_NAMES = ("Ana", "Ben", "Chen", "Dara", "Eli", "Fatima", "Goran", "Hana", "Ivan", "Jamal")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "tickets")


def part_of(items: Sequence[_Item], split: Split) -> Sequence[_Item]:
    """The items of one split: the first 256 for "test", the next 256 for "dev", the others for "train"."""
    if split == "test":
        return items[:NUM_TEST]
    if split == "dev":
        return items[NUM_TEST : NUM_TEST + NUM_DEV]
    return items[NUM_TEST + NUM_DEV :]


def embedded_problem(task: str, text: str, answer: int, split: Split) -> Problem:
    """A problem without any prompt template; its id is its text."""
    return Problem(f"{task}/{text}", (Message("user", text),), Gold(str(answer)), f"{task}/{split}")


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question, its worked solution, and the answer."""

    text: str
    solution: str
    answer: int


def _numbers(sign: str) -> list[tuple[int, int, int]]:
    """All (a, b, result) of an operation."""
    factors = list(itertools.product(range(2, 13), repeat=2))
    terms = list(itertools.product(range(2, 21), repeat=2))
    if sign == "+":
        return [(a, b, a + b) for a, b in terms]
    if sign == "-":
        return [(a, b, a - b) for a, b in terms if a > b]
    if sign == "*":
        return [(a, b, a * b) for a, b in factors]
    return [(a * b, b, a) for a, b in factors]


def _form(form: str, sign: str) -> Iterator[Exercise]:
    """Problems of one form, with numbers in a fixed shuffled order."""
    numbers = sorted(_numbers(sign), key=lambda terms: derive_seed("word problem", form, *terms))
    for a, b, result in numbers[:_PER_FORM]:
        place = derive_seed("word problem's words", form, a, b)
        name, things = _NAMES[place % len(_NAMES)], _THINGS[place // len(_NAMES) % len(_THINGS)]
        text = form.format(a=a, b=b, name=name, things=things)
        yield Exercise(text, f"{a} {sign} {b} = {result}", result)


@cache
def _shuffled() -> tuple[Exercise, ...]:
    signs = {"+": _SUMS, "-": _DIFFERENCES, "*": _PRODUCTS, "/": _QUOTIENTS}
    problems = [problem for sign, forms in signs.items() for form in forms for problem in _form(form, sign)]
    return tuple(sorted(problems, key=lambda problem: derive_seed("word problems", problem.text)))


def split_problems(split: Split) -> Sequence[Exercise]:
    """Problems of one split, in a fixed shuffled order: 256 for "test", 256 for "dev", the others for "train"."""
    return part_of(_shuffled(), split)


def problems(split: Split) -> list[Problem]:
    """The split as problems, without any prompt template."""
    return [embedded_problem("word_problems", problem.text, problem.answer, split) for problem in split_problems(split)]
