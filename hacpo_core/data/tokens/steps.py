"""Where a reasoning step, and the whole reasoning, ends in an agent's tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hacpo_core.data.boxed import first_box_end

if TYPE_CHECKING:  # importing transformers takes two seconds, which planning does not need
    from transformers import PreTrainedTokenizerBase

CONTEXT_TOKENS = 8
"""tokens decoded together with the step after them, since the first tokens of a step may decode differently alone"""

TAIL_CHARACTERS = 2_000
"""how far before a step a box or mark may begin; limits what is searched again in each round"""


@dataclass(frozen=True, slots=True)
class Step:
    """The first step of a token sequence.

    Attributes:
        num_tokens: of the step, including the token that contains its end; all tokens if there is no end.
        text: of these tokens, special tokens included.
        end: what ends the step; None if the tokens contain no complete step.
    """

    num_tokens: int
    text: str
    end: Literal["step", "reasoning"] | None


class StepReader:
    """Finds the end of a step or of the reasoning, whichever comes first, in an agent's tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, step_end: str, closing_mark: str) -> None:
        """
        Args:
            tokenizer: the agent's.
            step_end: text that ends a step.
            closing_mark: text that ends the reasoning; if empty, the first complete box ends it.
        """
        self._tokenizer, self._step_end, self._closing_mark = tokenizer, step_end, closing_mark

    def read(self, before_ids: Sequence[int], before_text: str, token_ids: Sequence[int]) -> Step:
        """The first step of `token_ids`.

        Args:
            before_ids: the response's tokens before `token_ids`.
            before_text: their text, in which the reasoning has not ended.
            token_ids: the following tokens, without EOS.
        """
        context = list(before_ids[-CONTEXT_TOKENS:])
        start = len(self._decoded(context))

        def text_of(num_tokens: int) -> str:
            return self._decoded([*context, *token_ids[:num_tokens]])[start:]

        text = text_of(len(token_ids))
        tail = before_text[-TAIL_CHARACTERS:]
        closed_at = self._closed_at(tail + text)
        step_at = text.find(self._step_end)
        ends: list[tuple[int, Literal["step", "reasoning"]]] = []
        if closed_at is not None:
            ends.append((closed_at - len(tail), "reasoning"))
        if step_at >= 0:
            ends.append((step_at + len(self._step_end), "step"))
        if not ends:
            return Step(len(token_ids), text, None)
        end_at, end = min(ends)
        step_text = text[:end_at]
        counts = range(1, len(token_ids) + 1)
        num_tokens = counts[bisect_left(counts, True, key=lambda n: text_of(n).startswith(step_text))]
        return Step(num_tokens, text_of(num_tokens), end)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that alone end a step or the reasoning. A sampler that stops at them discards fewer tokens."""
        ends = [text for text in (self._step_end, self._closing_mark) if text]
        ids = range(len(self._tokenizer))
        return frozenset(token_id for token_id in ids if any(end in self._decoded([token_id]) for end in ends))

    def _closed_at(self, text: str) -> int | None:
        if not self._closing_mark:
            return first_box_end(text)
        at = text.find(self._closing_mark)
        return at + len(self._closing_mark) if at >= 0 else None

    def _decoded(self, token_ids: Sequence[int]) -> str:
        """Text including special tokens, since a closing mark may be one."""
        return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))
