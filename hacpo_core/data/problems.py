"""Problem sets: read, checked, and dealt out step by step."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hacpo_core.config import DataConfig
from hacpo_core.data import arithmetic
from hacpo_core.data.prompts import format_messages
from hacpo_core.errors import DataError
from hacpo_core.records import Message, Problem
from hacpo_core.seeds import generator

Split = Literal["train", "dev", "test"]
_log = logging.getLogger(__name__)


def data_file(config: DataConfig, split: Split) -> Path | None:
    """Path of a split's file; None for the embedded task or a split that is not set.

    Raises:
        DataError: no data directory is known, or the file is not there.
    """
    name = {"train": config.train_file, "dev": config.dev_file, "test": config.test_file}[split]
    if config.source == "arithmetic" or name is None:
        return None
    directory = config.directory or os.environ.get("HACPO_DATA_DIR")
    if not directory and not Path(name).is_absolute():
        raise DataError(f"data.{split}_file: no folder is known for {name}; set data.directory or HACPO_DATA_DIR")
    path = Path(directory or "") / name
    if not path.is_file():
        raise DataError(f"data.{split}_file: {path} is not there; set data.directory or HACPO_DATA_DIR to its folder")
    return path


def load_problems(config: DataConfig, split: Split) -> list[Problem]:
    """All problems of a split, with the prompt template filled in.

    A JSONL line is an object with `id`, `problem` and `answer`. Rows with an empty answer cannot be rewarded: they
    are dropped and counted in the log.

    Returns:
        the problems; [] when the split is not set.

    Raises:
        DataError: a file is missing, a line is no JSON, a field is missing, an id occurs twice, nothing is left.
    """
    if config.source == "arithmetic":
        found = arithmetic.problems(split)
    else:
        path = data_file(config, split)
        if path is None:
            return []
        found = _read_jsonl(path)
    return [
        replace(problem, messages=format_messages(config.template, problem.messages[-1].content, config.system))
        for problem in found
    ]


def _read_jsonl(path: Path) -> list[Problem]:
    problems: dict[str, Problem] = {}
    num_unanswerable = 0
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = _parse(path, number, line)
            if not row["answer"].strip():
                num_unanswerable += 1
                continue
            if row["id"] in problems:
                raise DataError(f"{path}, line {number}: the id {row['id']!r} occurs twice; make ids unique")
            messages = (Message("user", row["problem"]),)
            problems[row["id"]] = Problem(row["id"], messages, row["answer"], f"{path.name}:{number}")
    if num_unanswerable:
        _log.warning("%s: dropped %d problems whose answer is empty", path, num_unanswerable)
    if not problems:
        raise DataError(f"{path} holds no problem that can be rewarded; expected one JSON object a line")
    return list(problems.values())


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: no JSON ({error}); mend or remove the line") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: got {type(row).__name__}, expected a JSON object")
    for name in ("id", "problem", "answer"):
        if not isinstance(row.get(name), str):
            raise DataError(
                f"{path}, line {number}: field {name!r} is missing or no text; expected id, problem, answer"
            )
    return row


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
