"""Worked solutions for supervised warm-up, read from a file and tokenised under an agent's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_core.columns import TokenRows
from hacpo_core.config import WeakWarmupConfig
from hacpo_core.data.prompts import format_messages, render_prompts
from hacpo_core.data.rows import data_path, read_rows
from hacpo_core.data.tokens.control_tokens import response_backend
from hacpo_core.data.tokens.retokenize import valid_unicode
from hacpo_core.errors import DataError
from hacpo_core.records import Message

if TYPE_CHECKING:  # see hacpo_core.data.prompts
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Solution:
    """A problem's prompt and its worked solution."""

    messages: tuple[Message, ...]
    text: str


def solutions_file(field: str, config: WeakWarmupConfig, directory: str | None) -> Path:
    """Path of a warm-up's file.

    Args:
        field: field that declares the warm-up, for messages.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR, else ./data.

    Raises:
        DataError: the file does not exist.
    """
    path = data_path(config.file, directory)
    if not path.is_file():
        raise DataError(
            f"{field}.file: {path} does not exist; put a file with the columns {config.problem_field} and "
            f"{config.solution_field} there, or set data.directory or HACPO_DATA_DIR"
        )
    return path


def read_solutions(field: str, config: WeakWarmupConfig, directory: str | None) -> list[Solution]:
    """All problems of the file with their solutions, the template filled in; arguments as for `solutions_file`.

    Raises:
        DataError: the file or a column is missing, a text is empty, or there is no row.
    """
    path = solutions_file(field, config, directory)
    solutions = [
        Solution(
            format_messages(config.template, row.text(config.problem_field), config.system),
            row.text(config.solution_field),
        )
        for row in read_rows(path)
    ]
    if not solutions:
        raise DataError(f"{field}.file: {path} has no rows, expected one JSON object per line; fix the file")
    return solutions


def solution_rows(
    tokenizer: PreTrainedTokenizerBase, solutions: Sequence[Solution], *, arguments: Mapping[str, Any]
) -> TokenRows:
    """A row for each solution: prompt under the chat template, then the solution and EOS as the response.

    Control tokens spelled out in a solution are tokenised as plain text.

    Args:
        tokenizer: with the chat template and an EOS.
        solutions: at least one.
        arguments: as for `render_prompts`.
    """
    prompts = render_prompts(tokenizer, [solution.messages for solution in solutions], arguments=arguments)
    texts = [valid_unicode(solution.text) for solution in solutions]
    if tokenizer.is_fast:
        encodings = response_backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
        responses = [encoding.ids for encoding in encodings]
    else:
        responses = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return TokenRows.of(prompts, [[*ids, tokenizer.eos_token_id] for ids in responses])
