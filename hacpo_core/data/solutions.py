"""Worked solutions to learn from: read from a file, and as prompt and response ids under an agent's chat template."""

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
    """A problem as it is asked, and the text that answers it."""

    messages: tuple[Message, ...]
    text: str


def solutions_file(field: str, config: WeakWarmupConfig, directory: str | None) -> Path:
    """Path of a warm-up's file.

    Args:
        field: where the warm-up is declared, for messages.
        config: its declaration.
        directory: data folder; None: HACPO_DATA_DIR, else ./data.

    Raises:
        DataError: it is not there.
    """
    path = data_path(config.file, directory)
    if not path.is_file():
        raise DataError(
            f"{field}.file: {path} is not there; put it there, with the columns {config.problem_field} and "
            f"{config.solution_field}, or set data.directory or HACPO_DATA_DIR"
        )
    return path


def read_solutions(field: str, config: WeakWarmupConfig, directory: str | None) -> list[Solution]:
    """All problems of the file with their solutions, the template filled in; arguments as of `solutions_file`.

    Raises:
        DataError: the file or a column is missing, a text is empty, or there is no row.
    """
    path = solutions_file(field, config, directory)
    found = [
        Solution(
            format_messages(config.template, row.text(config.problem_field), config.system),
            row.text(config.solution_field),
        )
        for row in read_rows(path)
    ]
    if not found:
        raise DataError(f"{field}.file: {path} holds no row; expected one JSON object a line")
    return found


def solution_rows(
    tokenizer: PreTrainedTokenizerBase, solutions: Sequence[Solution], *, arguments: Mapping[str, Any]
) -> TokenRows:
    """A row for each solution: its prompt under the chat template, its text and EOS as the response.

    What a text spells is text, never a control token.

    Args:
        tokenizer: with the chat template and an EOS.
        solutions: at least one.
        arguments: as of `render_prompts`.
    """
    prompts = render_prompts(tokenizer, [solution.messages for solution in solutions], arguments=arguments)
    texts = [valid_unicode(solution.text) for solution in solutions]
    if tokenizer.is_fast:
        encodings = response_backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
        responses = [encoding.ids for encoding in encodings]
    else:
        responses = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return TokenRows.of(prompts, [[*ids, tokenizer.eos_token_id] for ids in responses])
