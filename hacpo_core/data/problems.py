"""Problem sets: read, checked, and dealt out step by step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hacpo_core.config import DataConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.prompts import format_messages
from hacpo_core.data.rows import data_path, read_rows
from hacpo_core.errors import DataError
from hacpo_core.records import Gold, Message, Problem
from hacpo_core.seeds import generator

_log = logging.getLogger(__name__)


def data_file(config: DataConfig) -> Path | None:
    """Path of the training file; None for the embedded task.

    Raises:
        DataError: no data directory is known, or the file is not there.
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
        DataError: a file is missing, a line is no JSON, a field is missing, an id occurs twice, nothing is left.
    """
    path = data_file(config)
    found = arithmetic.problems("train") if path is None else _read_file(path)
    return [
        replace(problem, messages=format_messages(config.template, problem.messages[-1].content, config.system))
        for problem in found
    ]


def _read_file(path: Path) -> list[Problem]:
    problems: dict[str, Problem] = {}
    num_unanswerable = 0
    for row in read_rows(path):
        name, text, answer = (row.text(column) for column in ("id", "problem", "answer"))
        if not answer.strip():
            num_unanswerable += 1
            continue
        if name in problems:
            raise DataError(f"{row.place}: the id {name!r} occurs twice; make ids unique")
        problems[name] = Problem(name, (Message("user", text),), Gold(answer), f"{path.name}:{row.number}")
    if num_unanswerable:
        _log.warning("%s: dropped %d problems whose answer is empty", path, num_unanswerable)
    if not problems:
        raise DataError(f"{path} holds no problem that can be rewarded; expected one JSON object a line")
    return list(problems.values())


def step_batch(problems: Sequence[Problem], *, step: int, size: int, seed: int) -> list[Problem]:
    """The problems of one step: a function of (seed, step), so that no data position has to be saved.

    Epochs are reshuffled; what is left at an epoch's end is completed from the next epoch.

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
    first = (step - 1) * size
    positions = range(first, first + size)
    orders = {
        epoch: generator(seed, "epoch", epoch).permutation(len(problems))
        for epoch in {position // len(problems) for position in positions}
    }
    return [problems[orders[p // len(problems)][p % len(problems)]] for p in positions]
