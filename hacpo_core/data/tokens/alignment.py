"""Alignment of a response under two tokenizers, and the difference of its log-probabilities token by token.

Shapes: N token of the learner, M token of another agent.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hacpo_core.data.tokens.control_tokens import TEXT_LOCK
from hacpo_core.data.tokens.retokenize import decode_response, strip_eos

PIECES_CACHED = 2**16
Ids = NDArray[np.int32]


class TokenEnds:
    """End positions, in characters, of the tokens of a text under one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._piece: Callable[[int, int], str] = lru_cache(PIECES_CACHED)(self._new_piece)

    def _decode(self, *token_ids: int) -> str:
        return decode_response(self._tokenizer, token_ids)

    def _new_piece(self, before: int, token_id: int) -> str:
        """Text that a token adds after another token; some tokenizers write a space only there."""
        return self._decode(before, token_id)[len(self._decode(before)) :]

    def text(self, token_ids: Sequence[int]) -> str:
        """The decoded text."""
        return self._decode(*token_ids) if token_ids else ""

    def of(self, token_ids: Sequence[int]) -> NDArray[np.int64] | None:
        """End of each token in the decoded text; None if the texts of the single tokens do not add up to it."""
        if not token_ids:
            return np.empty(0, np.int64)
        pieces = [self._decode(token_ids[0]), *(self._piece(*pair) for pair in itertools.pairwise(token_ids))]
        if "".join(pieces) != self._decode(*token_ids):
            return None
        return np.cumsum([len(piece) for piece in pieces], dtype=np.int64)


class Aligner:
    """Compares log-probabilities of a response under a learner's tokenizer and another agent's."""

    def __init__(
        self,
        own_tokenizer: PreTrainedTokenizerBase,
        other_tokenizer: PreTrainedTokenizerBase,
        *,
        own_eos: Collection[int],
        other_eos: Collection[int],
    ) -> None:
        """
        Args:
            own_tokenizer: the learner's tokenizer.
            other_tokenizer: the other agent's tokenizer.
            own_eos, other_eos: ids that end a response of each.
        """
        self._own_ends, self._other_ends = TokenEnds(own_tokenizer), TokenEnds(other_tokenizer)
        self._own_eos, self._other_eos = own_eos, other_eos

    def difference(
        self, own_ids: Ids, own_N: NDArray[np.float64], other_ids: Ids, other_M: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The other agent's minus the learner's log-probability of each of the learner's tokens, by spans of text.

        If the two do not decode to the same text, the whole response is one span. A final EOS is compared with the
        other's final EOS; if only one of them has one, the difference is 0.

        Args:
            own_ids, own_N: the learner's tokens and their log-probabilities.
            other_ids, other_M: the other agent's tokens of the same text and their log-probabilities.

        Returns:
            difference_N.
        """
        with TEXT_LOCK:
            return self._difference(own_ids, own_N, other_ids, other_M)

    def _difference(
        self, own_ids: Ids, own_N: NDArray[np.float64], other_ids: Ids, other_M: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        own_content, other_content = strip_eos(own_ids, self._own_eos), strip_eos(other_ids, self._other_eos)
        own_list, other_list = own_content.tolist(), other_content.tolist()
        is_same = self._own_ends.text(own_list) == self._other_ends.text(other_list)  # tokenizers may normalise text
        ends = (self._own_ends.of(own_list), self._other_ends.of(other_list)) if is_same else (None, None)
        difference_N = np.zeros(len(own_ids))
        difference_N[: len(own_content)] = span_differences(
            own_N[: len(own_content)], ends[0], other_M[: len(other_content)], ends[1]
        )
        if len(own_content) < len(own_ids) and len(other_content) < len(other_ids):
            difference_N[-1] = other_M[-1] - own_N[-1]
        return difference_N


def span_differences(
    own_N: NDArray[np.float64],
    own_ends: NDArray[np.int64] | None,
    other_M: NDArray[np.float64],
    other_ends: NDArray[np.int64] | None,
) -> NDArray[np.float64]:
    """Difference of log-probabilities for each token of the learner, averaged over the span of text that contains it.

        d[n] = (sum of other over the span - sum of own over the span) / number of the learner's tokens in the span

    A span ends where a token of each tokenizer ends at the same character. If there are no such positions, or they are
    unknown, the whole text is one span.

    Args:
        own_N, other_M: log-probabilities of the tokens, nats.
        own_ends, other_ends: end positions of the tokens in the text, in characters; None: unknown.

    Returns:
        d_N, nats; its sum equals the difference of the two sums. 0 if one of them has no tokens.
    """
    if not len(own_N) or not len(other_M):
        return np.zeros(len(own_N))
    shared_ends = np.empty(0, np.int64)
    own_span_N, other_span_M = np.zeros(len(own_N), np.int64), np.zeros(len(other_M), np.int64)
    if own_ends is not None and other_ends is not None:
        shared_ends = np.intersect1d(own_ends[:-1], other_ends[:-1])
        own_span_N, other_span_M = np.searchsorted(shared_ends, own_ends), np.searchsorted(shared_ends, other_ends)
    size = len(shared_ends) + 1
    difference = np.bincount(other_span_M, other_M, size) - np.bincount(own_span_N, own_N, size)
    spread_N: NDArray[np.float64] = (difference / np.maximum(np.bincount(own_span_N, minlength=size), 1))[own_span_N]
    return spread_N
