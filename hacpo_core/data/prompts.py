"""Token ids of prompts, by each agent's own chat template."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

from hacpo_core.data.tokens.control_tokens import (
    NONCHARACTER,
    control_ids,
    special_token_ids,
    unspellable,
    unspellable_backend,
)
from hacpo_core.data.tokens.retokenize import valid_unicode
from hacpo_core.errors import ConfigError, DataError, ModelError
from hacpo_core.records import Message

if TYPE_CHECKING:  # importing transformers takes two seconds, which planning does not need
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger(__name__)
PLACEHOLDER = "{problem}"

# Marks a special token spelled out in a message while the template is rendered; a noncharacter, as NONCHARACTER is.
_MASK = "\ufdd1"
_SET_BY_RENDERER = frozenset({"messages", "strftime_now", "raise_exception"})
_QUESTION, _SENTINEL = "USERS-TURN", "ASSISTANTS-TURN"
"""turns that no template contains"""
_TEXTS_AT_ONCE = 1_000
_TODAY = datetime(2024, 7, 26, tzinfo=UTC)
"""date passed to chat templates, so that prompts do not depend on the day; the default of Llama 3's template"""


def format_messages(template: str, problem_text: str, system: str | None) -> tuple[Message, ...]:
    """The messages of a prompt: the system message, if any, and the template with the problem inserted.

    Only the literal `{problem}` is replaced, everywhere. Other braces, such as LaTeX's, are kept in both texts.
    """
    user = Message(role="user", content=template.replace(PLACEHOLDER, problem_text))
    return (user,) if system is None else (Message(role="system", content=system), user)


def check_template_arguments(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], *, agent: str) -> None:
    """Reject arguments that the chat template does not use or that the renderer sets itself.

    Args:
        tokenizer: with the agent's chat template.
        arguments: `chat_template_kwargs`.
        agent: its name, for the message.

    Raises:
        ConfigError: there is such an argument.
        ModelError: there is no chat template.
    """
    if not arguments:
        return
    names = set(re.findall(r"[^\W\d]\w*", _template_of(tokenizer)))
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    reserved_names = _SET_BY_RENDERER.union(parameters, tokenizer.special_tokens_map)
    for name in arguments:
        if name not in names - reserved_names:
            field = f"pair.agents.{agent}.chat_template_kwargs.{name}"
            why = "the renderer sets it itself" if name in reserved_names else "the chat template does not use it"
            raise ConfigError(f"{field} cannot take effect: {why}; leave it out, or set {field}=null")


def render_prompts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[Message]],
    *,
    arguments: Mapping[str, Any] | None = None,
) -> list[tuple[int, ...]]:
    """Token ids of each prompt, rendered by the chat template up to the start of the agent's turn.

    Only the template decides about BOS. The date passed to it is fixed, so that a run resumed on another day has the
    same prompts. A control token (`<|im_end|>`) spelled out in a message is tokenised as plain text; the template's own
    control tokens are kept.

    Args:
        tokenizer: with the chat template.
        prompts: messages of each prompt.
        arguments: additional arguments of the template.

    Raises:
        ModelError: there is no chat template, it rejects the messages, or its output is empty.
        DataError: there are no messages.
    """
    if not all(prompts):
        raise DataError("a prompt has no messages: got 0, expected at least 1; check the problem's `messages`")
    arguments = arguments or {}
    plain = [
        tuple(Message(role=message.role, content=_plain(message.content)) for message in messages)
        for messages in prompts
    ]
    spelling = {n for n, spells in enumerate(_spell_control(tokenizer, plain)) if spells}
    texts = [_render(tokenizer, messages, arguments) for n, messages in enumerate(plain) if n not in spelling]
    encoded_texts = _encode_texts(tokenizer, texts)
    conversations = [
        _encode_masked(tokenizer, messages, arguments) if n in spelling else tuple(next(encoded_texts))
        for n, messages in enumerate(plain)
    ]
    if not all(conversations):
        raise ModelError(f"the chat template of {_path_of(tokenizer)} gives an empty prompt; fix the template")
    return conversations


def leaves_mark_to_response(tokenizer: PreTrainedTokenizerBase, mark: str, *, arguments: Mapping[str, Any]) -> bool:
    """Whether a chat template contains a mark such as `</think>`, but does not write it into the prompt.

    With `enable_thinking: false`, Qwen3's template writes an empty thought and its mark into the prompt, so that
    responses do not contain the mark.

    Args:
        tokenizer: with the chat template.
        mark: text; no template contains an empty one.
        arguments: additional arguments of the template.
    """
    if not mark or mark not in _template_of(tokenizer):
        return False
    return mark not in _render(tokenizer, [Message(role="user", content="1 + 1?")], arguments)


def turn_end_id(tokenizer: PreTrainedTokenizerBase, *, arguments: Mapping[str, Any] | None = None) -> int | None:
    """Id of the token that the chat template writes after an assistant's turn; None if it writes none.

    It need not be the tokenizer's EOS: Qwen's base models have `<|endoftext|>`, but their template ends turns with
    `<|im_end|>`.

    Args:
        tokenizer: with the chat template.
        arguments: additional arguments of the template.
    """
    conversation = (Message("user", "Begin."), Message("assistant", _SENTINEL))
    try:
        text = _render(tokenizer, conversation, arguments or {}, is_open=False)
    except ModelError as error:
        _log.warning("%s; responses end in the tokenizer's EOS", error)
        return None
    _, content, rest = text.rpartition(_SENTINEL)
    ids = special_token_ids(tokenizer) | tokenizer.get_added_vocab()
    ends = [token for token in ids if content and token.strip() and rest.lstrip().startswith(token.strip())]
    return ids[max(ends, key=len)] if ends else None


def check_generation_prompt(tokenizer: PreTrainedTokenizerBase, *, arguments: Mapping[str, Any] | None = None) -> None:
    """Check that a prompt contains its message and ends where an assistant's turn begins.

    Raises:
        ModelError: the template does not write the message, such as a file's name in its place, or it writes something
            before an assistant's turn, such as `<|im_start|>assistant`, but not at the end of a prompt
            (`add_generation_prompt`).
    """
    user, template_arguments = Message("user", _QUESTION), arguments or {}
    prompt = _render(tokenizer, (user,), template_arguments)
    if _QUESTION not in prompt:
        raise ModelError(
            f"the chat template of {_path_of(tokenizer)} writes {prompt[:60]!r} for any message; set "
            "`pair.agents.<name>.chat_template` to a template that writes the messages, or to its file"
        )
    if prompt != _render(tokenizer, (user,), template_arguments, is_open=False):
        return
    try:
        text = _render(tokenizer, (user, Message("assistant", _SENTINEL)), template_arguments, is_open=False)
    except ModelError:  # a template for users alone
        return
    text_before, content, _ = text.rpartition(_SENTINEL)
    missing_text = text_before.removeprefix(prompt).strip()
    if content and missing_text and text_before.startswith(prompt):
        raise ModelError(
            f"the chat template of {_path_of(tokenizer)} writes {missing_text!r} before an assistant's turn, but not "
            "at the end of a prompt; add an `if add_generation_prompt` block that writes it, or set "
            "`pair.agents.<name>.chat_template`"
        )


def _path_of(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or "a tokenizer in memory")


def _encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[list[int]]:
    """Ids of each text. Batched calls halve the time; batches are limited to save memory."""
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        yield from tokenizer(list(texts[first : first + _TEXTS_AT_ONCE]), add_special_tokens=False)["input_ids"]


def _template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise ModelError(
            f"{_path_of(tokenizer)} has no chat template; add a `chat_template` to its tokenizer_config.json, "
            "or a chat_template.jinja beside it, or set `pair.agents.<name>.chat_template`"
        ) from error


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    arguments: Mapping[str, Any],
    *,
    is_open: bool = True,
) -> str:
    """The conversation as text; `is_open`: up to the start of the agent's next turn."""
    path = _path_of(tokenizer)
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    _template_of(tokenizer)
    try:
        return str(
            tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=is_open, strftime_now=_TODAY.strftime, **arguments
            )
        )
    except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        roles = [message.role for message in messages]
        raise ModelError(
            f"the chat template of {path} rejects a prompt with roles {roles}: {error}; "
            "change the prompt's messages or set `pair.agents.<name>.chat_template`"
        ) from error


def _plain(text: str) -> str:
    return re.sub(f"[{NONCHARACTER}{_MASK}]", "\ufffd", valid_unicode(text))


def _spell_control(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[Message]]) -> list[bool]:
    """For each prompt, whether one of its messages spells a control token."""
    control = control_ids(tokenizer)
    rows = _encode_texts(tokenizer, [message.content for messages in prompts for message in messages])
    rows_of_prompts = [list(islice(rows, len(messages))) for messages in prompts]
    return [not control.isdisjoint(chain.from_iterable(rows)) for rows in rows_of_prompts]


def _encode_masked(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]
) -> tuple[int, ...]:
    """Ids of a prompt whose messages spell control tokens.

    The template's own control tokens are renamed so that no text can spell them; the messages' text stays as it is.
    """
    ids = special_token_ids(tokenizer)
    spelled = re.compile("|".join(re.escape(token) for token in sorted(ids, key=len, reverse=True)))
    masked_texts: list[str] = []

    def mask(match: re.Match[str]) -> str:
        masked_texts.append(match.group())
        return f"{_MASK}{len(masked_texts) - 1}{_MASK}"

    masked = [Message(role=message.role, content=spelled.sub(mask, message.content)) for message in messages]
    text = spelled.sub(lambda match: unspellable(ids[match.group()]), _render(tokenizer, masked, arguments))
    text = re.sub(f"{_MASK}([0-9]+){_MASK}", lambda match: masked_texts[int(match.group(1))], text)
    return tuple(_backend(tokenizer).encode(text, add_special_tokens=False).ids)


@lru_cache(maxsize=8)
def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    return unspellable_backend(tokenizer)
