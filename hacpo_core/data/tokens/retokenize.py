"""Conversion of one agent's responses to another agent's tokens.

Responses are passed between agents as text, unless both agents have the same tokenizer and chat template. Control
tokens spelled out in a response, such as `<|im_end|>` or `</s>`, stay plain text and do not end the learner's turn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hacpo_core.columns import Ragged
from hacpo_core.data.tokens.control_tokens import TEXT_LOCK, control_ids, response_backend, tokenizers_match
from hacpo_core.errors import ModelError
from hacpo_core.records import EosRule
from hacpo_core.responses import Responses

if TYPE_CHECKING:  # importing transformers takes two seconds, which planning does not need
    from transformers import PreTrainedTokenizerBase


class Retokenizer:
    """Converts the responses of one agent (source) to token ids of another (target)."""

    def __init__(
        self,
        source: PreTrainedTokenizerBase,
        target: PreTrainedTokenizerBase,
        *,
        eos: EosRule,
        source_eos_ids: Collection[int] = (),
        target_end_id: int | None = None,
        has_same_arguments: bool = True,
    ) -> None:
        """Compare the two tokenizers once, and read the target's control tokens.

        Args:
            source: tokenizer of the sampling agent.
            target: tokenizer of the learner.
            eos: "keep" appends the target's end token to finished responses, "drop" only to responses that are just an
                EOS, "as_text" decodes and encodes control tokens like all others and removes only the source's padding.
            source_eos_ids: ids that end a response of the source, in addition to its tokenizer's EOS.
            target_end_id: the token with which the target's chat template ends a turn; None: its tokenizer's EOS.
            has_same_arguments: whether both chat templates get the same arguments; if not, even equal tokenizers are
                treated as different.

        Raises:
            ModelError: EOS is kept and the target has none.
        """
        self.is_pass_through = eos != "as_text" and has_same_arguments and tokenizers_match(source, target)
        self._eos = eos
        self._source_eos_ids = frozenset({*source_eos_ids, source.eos_token_id}) - {None}
        if self.is_pass_through:
            return
        end_id = target.eos_token_id if target_end_id is None else target_end_id
        if eos == "keep" and end_id is None:
            path = target.name_or_path or "a tokenizer in memory"
            raise ModelError(f"{path} has no EOS token; add `eos_token` to tokenizer_config.json or drop EOS")
        self._source, self._target = source, target
        self._suffix = [] if end_id is None else [int(end_id)]
        self._control_ids = control_ids(target)
        self._backend = response_backend(target)

    def convert(self, responses: Responses) -> Ragged:
        """The responses in the target's tokens (int32), however long; each row is converted independently.

        Empty where nothing is left to train on. Control tokens are removed that texts spelled and the target tokenizer
        cannot encode as plain text.
        """
        with TEXT_LOCK:
            return Ragged.of(self._converted(responses), np.int32)

    def _converted(self, responses: Responses) -> Sequence[Any]:
        ends = zip(responses.token_ids, responses.finish_reason, strict=True)
        source_ids = [self._source_ids(ids, reason) for ids, reason in ends]
        if self.is_pass_through:
            return source_ids
        if self._eos == "as_text":
            return self._as_text(source_ids)
        ids_of_texts = self._encode_with_leading_space(response_texts(responses))
        rows = zip(source_ids, responses.finish_reason, ids_of_texts, strict=True)
        return [self._ended(self._without_control(encoded_ids), ids, reason) for ids, reason, encoded_ids in rows]

    def _as_text(self, source_ids: list[NDArray[np.int32]]) -> list[list[int]]:
        """Tokens of the text in which the source's control tokens are spelled; the target may know some of them."""
        pad_id = self._source.eos_token_id if self._source.pad_token_id is None else self._source.pad_token_id
        texts = [self._source.decode(ids[ids != pad_id], skip_special_tokens=False) for ids in source_ids]
        return [list(ids) for ids in self._target(texts, add_special_tokens=False)["input_ids"]] if texts else []

    def _without_control(self, token_ids: list[int]) -> list[int]:
        if self._control_ids.isdisjoint(token_ids):  # fast path: control tokens are rare
            return token_ids
        return [token_id for token_id in token_ids if token_id not in self._control_ids]

    def _ended(self, content: list[int], source_ids: NDArray[np.int32], finish_reason: str) -> list[int]:
        """The content, followed by the target's end token if the response ends in one."""
        is_eos_alone = not len(strip_eos(source_ids, self._source_eos_ids))
        if not content and not is_eos_alone:
            return []  # a lone EOS would get the reward of a response with text
        ends_in_eos = finish_reason == "stop" and (self._eos == "keep" or is_eos_alone)
        return [*content, *self._suffix] if ends_in_eos else content

    def _source_ids(self, token_ids: NDArray[np.int32], finish_reason: str) -> NDArray[np.int32]:
        is_stripped = self._eos == "drop" and finish_reason == "stop"
        return without_eos(token_ids, self._source_eos_ids) if is_stripped else token_ids

    def _encode_with_leading_space(self, texts: list[str]) -> list[list[int]]:
        """Tokens that decode to the text; one more space in front where the target swallows the first one."""
        ids_of_texts = self._encode(texts)
        swallowed = [
            row for row, text in enumerate(texts) if text.startswith(" ") and self._decode(ids_of_texts[row]) != text
        ]
        for row, ids in zip(swallowed, self._encode([" " + texts[row] for row in swallowed]), strict=True):
            if self._decode(ids) == texts[row]:
                ids_of_texts[row] = ids
        return ids_of_texts

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _decode(self, token_ids: list[int]) -> str:
        return decode_response(self._target, token_ids)


def decode_response(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of a response, special tokens skipped and no space tidied away (what `Responses.text` holds)."""
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def encode_responses(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts as responses: without an end token, control tokens spelled out in a text as plain text."""
    encodings = response_backend(tokenizer).encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def response_texts(responses: Responses) -> list[str]:
    """The texts to share: valid Unicode, without the half character that a length limit left at the end.

    Other U+FFFD stay, since the verifier read them too and nothing tells a sampled U+FFFD from a broken byte.
    """
    texts = map(valid_unicode, responses.text)
    pairs = zip(texts, responses.finish_reason, strict=True)
    return [text.rstrip("\ufffd") if reason == "length" else text for text, reason in pairs]


def valid_unicode(text: str) -> str:
    """The text with surrogate pairs joined and every lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def strip_eos(token_ids: NDArray[np.int32], eos_ids: Collection[int]) -> NDArray[np.int32]:
    """The ids without their final EOS, if there is one."""
    return token_ids[:-1] if len(token_ids) and int(token_ids[-1]) in eos_ids else token_ids


def without_eos(token_ids: NDArray[np.int32], eos_ids: Collection[int]) -> NDArray[np.int32]:
    """The ids to train on under `drop`: without the final EOS, unless it is the only token.

    Source: official code.
    """
    stripped = strip_eos(token_ids, eos_ids)
    return stripped if len(stripped) else token_ids
