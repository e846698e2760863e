"""What one agent said, in another agent's tokens.

A response travels between agents as text, except where both agents share tokenizer and template. What the text spells
stays text: a response that types `<|im_end|>` or `</s>` ends nobody's turn but its author's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hacpo_core.data.control_tokens import control_ids, response_backend, tokenizers_match
from hacpo_core.errors import ConfigError, ModelError
from hacpo_core.records import Rollout

if TYPE_CHECKING:  # two seconds, which plans do without
    from transformers import PreTrainedTokenizerBase

ShareStatus = Literal["ok", "truncated", "empty"]
EosRule = Literal["keep", "drop"]


@dataclass(frozen=True, slots=True)
class SharedResponse:
    """A response as the learner trains on it.

    `status` is "truncated" where the learner's limit cut it (its end-of-sequence token went with the cut) and "empty"
    where nothing is left to train on: `token_ids` is then (). `length_drift` is the change in tokens before that cut,
    (target - source) / source. `num_control_dropped` counts control tokens that the text spelled and that the target
    could not write in any other way.
    """

    token_ids: tuple[int, ...]
    status: ShareStatus
    length_drift: float
    is_passed_through: bool
    num_control_dropped: int = 0


class Retokenizer:
    """Turns the responses of one agent (source) into token ids of another (target)."""

    def __init__(
        self,
        source: PreTrainedTokenizerBase,
        target: PreTrainedTokenizerBase,
        *,
        eos: EosRule,
        max_response_tokens: int,
        source_eos_ids: Collection[int] = (),
        has_same_arguments: bool = True,
    ) -> None:
        """Compares the two tokenizers once, and reads the target's control tokens.

        Args:
            eos: "keep" ends a response that stopped by itself in the target's EOS, "drop" in nothing, unless it is
                an EOS alone.
            max_response_tokens: the learner's limit in tokens, EOS included, >= 1.
            source_eos_ids: more ids that end a response of the source, as its generation_config lists them.
            has_same_arguments: whether both chat templates are given the same arguments; where not, equal tokenizers
                do not count as the same.

        Raises:
            ConfigError: `eos` or `max_response_tokens` is out of range.
            ModelError: EOS is kept and the target has none.
        """
        if eos not in ("keep", "drop"):
            raise ConfigError(f"retokenize.eos is unknown: got {eos!r}; set it to keep or drop")
        if max_response_tokens < 1:
            raise ConfigError(f"max_response_tokens is out of range: got {max_response_tokens}; set it to 1 or more")
        self.is_pass_through = has_same_arguments and tokenizers_match(source, target)
        self._eos = eos
        self._max_response_tokens = max_response_tokens
        self._source_eos_ids = frozenset(source_eos_ids) | _eos_ids(source)
        if self.is_pass_through:
            return
        if eos == "keep" and target.eos_token_id is None:
            path = target.name_or_path or "a tokenizer in memory"
            raise ModelError(f"{path} has no EOS token; add `eos_token` to tokenizer_config.json or drop EOS")
        self._target = target
        self._eos_suffix = tuple(_eos_ids(target))
        self._control_ids = control_ids(target)
        self._backend = response_backend(target) if target.is_fast else None

    def convert(self, rollout: Rollout) -> SharedResponse:
        """The rollout's response in the target's tokens."""
        return self.convert_batch((rollout,))[0]

    def convert_batch(self, rollouts: Sequence[Rollout]) -> tuple[SharedResponse, ...]:
        """The rollouts' responses in the target's tokens, in their order; a row depends on no other row."""
        if self.is_pass_through:
            return tuple(self._pass_through(rollout) for rollout in rollouts)
        texts = [response_text(rollout) for rollout in rollouts]
        encoded = self._encode_with_leading_space(texts)
        return tuple(self._retokenized(rollout, ids) for rollout, ids in zip(rollouts, encoded, strict=True))

    def _pass_through(self, rollout: Rollout) -> SharedResponse:
        token_ids = self._source_ids(rollout)
        return self._bounded(token_ids, length_drift=0.0, is_passed_through=True, num_control_dropped=0)

    def _retokenized(self, rollout: Rollout, encoded: Sequence[int]) -> SharedResponse:
        source_ids = self._source_ids(rollout)
        content = tuple(encoded)
        if not self._control_ids.isdisjoint(content):  # rare, and slow for every token of every response
            content = tuple(token_id for token_id in content if token_id not in self._control_ids)
        is_eos_alone = not strip_eos(source_ids, self._source_eos_ids)
        ends_in_eos = rollout.finish_reason == "stop" and (self._eos == "keep" or is_eos_alone)
        # EOS alone would teach the learner to say nothing, with the reward of a response that said something.
        is_lost = not content and not is_eos_alone
        token_ids = () if is_lost else content + (self._eos_suffix if ends_in_eos else ())
        return self._bounded(
            token_ids,
            length_drift=(len(token_ids) - len(source_ids)) / len(source_ids) if source_ids else 0.0,
            is_passed_through=False,
            num_control_dropped=len(encoded) - len(content),
        )

    def _source_ids(self, rollout: Rollout) -> tuple[int, ...]:
        is_stripped = self._eos == "drop" and rollout.finish_reason == "stop"
        return without_eos(rollout.token_ids, self._source_eos_ids) if is_stripped else rollout.token_ids

    def _bounded(
        self, token_ids: tuple[int, ...], *, length_drift: float, is_passed_through: bool, num_control_dropped: int
    ) -> SharedResponse:
        status: ShareStatus = "ok" if token_ids else "empty"
        if len(token_ids) > self._max_response_tokens:
            status = "truncated"
        return SharedResponse(
            token_ids=token_ids[: self._max_response_tokens],
            status=status,
            length_drift=length_drift,
            is_passed_through=is_passed_through,
            num_control_dropped=num_control_dropped,
        )

    def _encode_with_leading_space(self, texts: list[str]) -> list[list[int]]:
        """Tokens that decode to the text; one more space in front where the target swallows the first one."""
        encoded = self._encode(texts)
        swallowed = [
            row for row, text in enumerate(texts) if text.startswith(" ") and self._decode(encoded[row]) != text
        ]
        for row, ids in zip(swallowed, self._encode([" " + texts[row] for row in swallowed]), strict=True):
            if self._decode(ids) == texts[row]:
                encoded[row] = ids
        return encoded

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        if self._backend is None:
            encoding = self._target(texts, add_special_tokens=False, split_special_tokens=True, truncation=False)
            return [list(ids) for ids in encoding["input_ids"]]
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _decode(self, token_ids: list[int]) -> str:
        return decode_response(self._target, token_ids)


def decode_response(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of a response, special tokens skipped and no space tidied away (what `Rollout.text` holds)."""
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def response_text(rollout: Rollout) -> str:
    """The text to share: valid Unicode, without the half character that a length limit left at the end.

    Other U+FFFD stay, since the verifier read them too and nothing tells a sampled U+FFFD from a broken byte.
    """
    text = valid_unicode(rollout.text)
    return text.rstrip("\ufffd") if rollout.finish_reason == "length" else text


def valid_unicode(text: str) -> str:
    """The text with surrogate pairs joined and every lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def strip_eos(token_ids: tuple[int, ...], eos_ids: Collection[int]) -> tuple[int, ...]:
    """The ids without the one end-of-sequence token that may close them."""
    return token_ids[:-1] if token_ids and token_ids[-1] in eos_ids else token_ids


def without_eos(token_ids: tuple[int, ...], eos_ids: Collection[int]) -> tuple[int, ...]:
    """What is trained on under `drop`: the ids without their closing EOS; an EOS alone stays, or nothing would be left.

    Source: official code.
    """
    return strip_eos(token_ids, eos_ids) or token_ids


def _eos_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    return frozenset() if tokenizer.eos_token_id is None else frozenset({tokenizer.eos_token_id})
