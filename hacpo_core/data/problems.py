"""Problem sets: read, checked, and dealt out step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from hacpo_core.config import DataConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.prompts import format_messages
from hacpo_core.data.rows import data_path, has_several_answers, read_rows, warn_once
from hacpo_core.errors import DataError
from hacpo_core.records import Gold, Message, Problem
from hacpo_core.seeds import generator


def data_file(config: DataConfig) -> Path | None:
    """Path of the training file; None for the embedded task.

    Raises:
        DataError: the file is not there.
    """
    if config.source == "arithmetic":
        return None
    if config.train_file is None:
        raise DataError("data.train_file: got none; name a JSONL or Parquet file of the data folder")
    path = data_path(config.train_file, config.directory)
    if not path.is_file():
        raise DataError(f"data.train_file: {path} is not there; set data.directory or HACPO_DATA_DIR to its folder")
    return path


def load_problems(config: DataConfig) -> list[Problem]:
    """All training problems, with the prompt template filled in.

    A row has `id`, `problem` and `answer`. Rows with an empty answer cannot be rewarded: they are dropped and counted
    in the log.

    Raises:
        DataError: a file is missing, a line is no JSON, a field is missing, an id or a problem is empty, an id occurs
            twice, nothing is left.
    """
    path = data_file(config)
    found = arithmetic.problems("train") if path is None else _read_file(path)
    return [
        replace(problem, messages=format_messages(config.template, problem.messages[-1].content, config.system))
        for problem in found
    ]


def _read_file(path: Path) -> list[Problem]:
    problems: dict[str, Problem] = {}
    num_unanswerable = num_doubtful = 0
    for row in read_rows(path):
        name, text, answer = (
            row.id("id"),
            row.text("problem"),
            row.text("answer", numbers=True, blanks=True),
        )
        if not answer.strip():
            num_unanswerable += 1
            continue
        if name in problems:
            raise DataError(f"{row.place}: the id {name!r} occurs twice; make ids unique")
        problems[name] = Problem(name, (Message("user", text),), Gold(answer), f"{path.name}:{row.number}")
        num_doubtful += has_several_answers(row)
    if num_doubtful:
        warn_once(f"{path}: the solutions of {num_doubtful} problems box several answers; the last one counts")
    if num_unanswerable:
        warn_once(f"{path}: dropped {num_unanswerable} problems whose answer is empty")
    if not problems:
        raise DataError(f"{path} holds no problem that can be rewarded; expected one JSON object a line")
    return list(problems.values())


def step_batch(problems: Sequence[Problem], *, step: int, size: int, seed: int) -> list[Problem]:
    """The problems of one step: a function of (seed, step), so that no data position has to be saved.

    Epochs are reshuffled; what is left at an epoch's end is completed from the next epoch, with problems that are not
    in the batch yet: the same problem twice would be the same responses twice, their seeds being equal.

    Args:
        problems: the training set.
        step: 1-based.
        size: problems per step; no more than the set holds.
        seed: of the experiment.

    Raises:
        ValueError: the set is smaller than one batch.
    """
    if size > len(problems):
        raise ValueError(f"train.problems: got {size}, but the training set holds {len(problems)}; lower it")
    total = len(problems)
    positions = range((step - 1) * size, step * size)
    for epoch in range(positions[-1] // total):  # each is made from the one before
        _epoch_order(total, epoch, size=size, seed=seed)
    return [problems[_epoch_order(total, p // total, size=size, seed=seed)[p % total]] for p in positions]


@cache
def _epoch_order(total: int, epoch: int, *, size: int, seed: int) -> list[int]:
    """Order of all problems in an epoch: shuffled, but what the batch that it completes holds already comes later."""
    order: list[int] = generator(seed, "epoch", epoch).permutation(total).tolist()
    num_held = epoch * total % size
    if num_held == 0:
        return order
    held = set(_epoch_order(total, epoch - 1, size=size, seed=seed)[total - num_held :])
    next_ones = [problem for problem in order if problem not in held][: size - num_held]
    chosen = set(next_ones)
    return [*next_ones, *(problem for problem in order if problem not in chosen)]
