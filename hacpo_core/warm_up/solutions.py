"""Worked solutions for a supervised warm-up: from a file or an embedded task, tokenised under a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_core.columns import TokenRows
from hacpo_core.config import WarmUpConfig
from hacpo_core.data import arithmetic, letters, word_problems
from hacpo_core.data.prompts import format_messages, render_prompts
from hacpo_core.data.rows import data_path, read_rows
from hacpo_core.data.tokens.retokenize import encode_responses, valid_unicode
from hacpo_core.errors import DataError
from hacpo_core.records import Message
from hacpo_core.seeds import generator

if TYPE_CHECKING:  # see hacpo_core.data.prompts
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Solution:
    """A problem's prompt and its worked solution."""

    messages: tuple[Message, ...]
    text: str


def solutions_file(field: str, config: WarmUpConfig, directory: str | None) -> Path | None:
    """Path of a warm-up's file; None for an embedded task.

    Args:
        field: field that declares the warm-up, for messages.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR, else ./data.

    Raises:
        DataError: the file does not exist.
    """
    if config.source != "file":
        return None
    path = data_path(config.file, directory)
    if not path.is_file():
        raise DataError(
            f"{field}.file: {path} does not exist; put a file with the columns {config.problem_field} and "
            f"{config.solution_field} there, or set data.directory or HACPO_DATA_DIR"
        )
    return path


def read_solutions(field: str, config: WarmUpConfig, directory: str | None) -> list[Solution]:
    """All problems with their solutions, the template filled in; arguments as for `solutions_file`.

    Raises:
        DataError: the file or a column is missing, a text is empty, or there is no row.
    """
    if config.source == "file":
        texts = _texts_of_file(field, config, directory)
    elif config.source == "word_problems":
        texts = [(exercise.text, exercise.solution) for exercise in word_problems.split_problems("train")]
    elif config.source in letters.LENGTHS:
        texts = [(exercise.text, exercise.solution) for exercise in letters.split_exercises(config.source, "train")]
    else:
        texts = _demonstrations(config)
    return [Solution(format_messages(config.template, problem, config.system), text) for problem, text in texts]


def _texts_of_file(field: str, config: WarmUpConfig, directory: str | None) -> list[tuple[str, str]]:
    path = solutions_file(field, config, directory)
    assert path is not None, "the source is a file"
    rows = list(read_rows(path, (config.problem_field, config.solution_field)))
    if not rows:
        raise DataError(f"{field}.file: {path} has no rows, expected one JSON object per line; fix the file")
    return [(row.text(config.problem_field), row.text(config.solution_field)) for row in rows]


def _demonstrations(config: WarmUpConfig) -> list[tuple[str, str]]:
    rng = generator("demonstrations", config.seed)
    train = arithmetic.split_expressions("train")
    expressions = [train[position] for position in rng.integers(len(train), size=config.num_demonstrations).tolist()]
    texts = [arithmetic.demonstrate(expression, config.misconceptions, rng) for expression in expressions]
    if any(config.spaces):
        texts = [arithmetic.with_spaces(text, config.spaces, rng) for text in texts]
    return [(str(expression), text) for expression, text in zip(expressions, texts, strict=True)]


def solution_rows(
    tokenizer: PreTrainedTokenizerBase, solutions: Sequence[Solution], *, end_id: int, arguments: Mapping[str, Any]
) -> TokenRows:
    """A row for each solution: prompt under the chat template, then the solution and the end token as the response.

    Control tokens spelled out in a solution are tokenised as plain text.

    Args:
        tokenizer: with the chat template.
        solutions: at least one.
        end_id: token that ends a response.
        arguments: as for `render_prompts`.
    """
    conversations = list(dict.fromkeys(solution.messages for solution in solutions))
    prompts = dict(zip(conversations, render_prompts(tokenizer, conversations, arguments=arguments), strict=True))
    responses = encode_responses(tokenizer, [valid_unicode(solution.text) for solution in solutions])
    return TokenRows.of([prompts[solution.messages] for solution in solutions], [[*ids, end_id] for ids in responses])
