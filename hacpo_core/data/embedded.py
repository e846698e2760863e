"""What the embedded tasks share: three disjoint splits, the same in every experiment, and problems made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from hacpo_core.records import Gold, Message, Problem

Split = Literal["train", "dev", "test"]
NUM_DEV = NUM_TEST = 256
Item = TypeVar("Item")


def part_of(items: Sequence[Item], split: Split) -> Sequence[Item]:
    """The items of one split: the first 256 for "test", the next 256 for "dev", the others for "train"."""
    if split == "test":
        return items[:NUM_TEST]
    if split == "dev":
        return items[NUM_TEST : NUM_TEST + NUM_DEV]
    return items[NUM_TEST + NUM_DEV :]


def embedded_problem(task: str, text: str, answer: int, split: Split, *, solution: str) -> Problem:
    """A problem without any prompt template; its id is its text."""
    return Problem(f"{task}/{text}", (Message("user", text),), Gold(str(answer)), f"{task}/{split}", solution)
