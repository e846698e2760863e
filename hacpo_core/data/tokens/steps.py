"""Where a step of reasoning ends in an agent's tokens, and where the reasoning ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hacpo_core.data.boxed import first_box_end

if TYPE_CHECKING:  # two seconds, which plans do without
    from transformers import PreTrainedTokenizerBase

CONTEXT_TOKENS = 8
"""tokens before a step that are decoded with it: its first tokens alone may spell something else"""

TAIL_CHARACTERS = 2_000
"""of the text before a step in which a box, or a mark, may have begun: long beams are not read again in every round"""


@dataclass(frozen=True, slots=True)
class Step:
    """The first step of some tokens.

    Attributes:
        num_tokens: of the step, the one that holds its end included; all tokens where no end is among them.
        text: of these tokens, special tokens included.
        end: what ends it; None where all tokens together are no whole step.
    """

    num_tokens: int
    text: str
    end: Literal["step", "reasoning"] | None


class StepReader:
    """Cuts an agent's tokens at the end of a step, or of the reasoning, whichever comes first."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, step_end: str, closing_mark: str) -> None:
        """Steps of one kind in one tokenizer.

        Args:
            tokenizer: of the agent.
            step_end: text that ends a step.
            closing_mark: text that ends the reasoning; where it is empty, the first complete box does.
        """
        self._tokenizer, self._step_end, self._closing_mark = tokenizer, step_end, closing_mark

    def read(self, before_ids: Sequence[int], before_text: str, token_ids: Sequence[int]) -> Step:
        """The first step of `token_ids`, which hold no EOS.

        Args:
            before_ids: tokens of the response before them.
            before_text: their text, in which no reasoning ends.
            token_ids: what follows.
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
        wanted = text[:end_at]
        counts = range(1, len(token_ids) + 1)
        num_tokens = counts[bisect_left(counts, True, key=lambda n: text_of(n).startswith(wanted))]
        return Step(num_tokens, text_of(num_tokens), end)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a step or the reasoning by themselves: a sampler that stops at them throws less away."""
        ends = [text for text in (self._step_end, self._closing_mark) if text]
        ids = range(len(self._tokenizer))
        return frozenset(token_id for token_id in ids if any(end in self._decoded([token_id]) for end in ends))

    def _closed_at(self, text: str) -> int | None:
        if not self._closing_mark:
            return first_box_end(text)
        at = text.find(self._closing_mark)
        return at + len(self._closing_mark) if at >= 0 else None

    def _decoded(self, token_ids: Sequence[int]) -> str:
        """Text with its special tokens: a closing mark may be one."""
        return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))
