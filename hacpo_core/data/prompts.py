"""From a problem to the token ids of a prompt, by each agent's own chat template."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables
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

if TYPE_CHECKING:  # two seconds, which plans do without
    from transformers import PreTrainedTokenizerBase

PLACEHOLDER = "{problem}"

# Stands for a spelled special token while the template is rendered; reserved for internal use like NONCHARACTER.
_MASK = "\ufdd1"
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""a tag of transformers' own, around what an assistant said"""
_SET_BY_RENDERER = frozenset({"messages", "strftime_now", "raise_exception"})
_TEXTS_AT_ONCE = 1_000
_TODAY = datetime(2024, 7, 26, tzinfo=UTC)
"""the day that templates are told: Llama 3's names this one where it is given none"""


def format_messages(template: str, problem_text: str, system: str | None) -> tuple[Message, ...]:
    """The turns of a prompt: the system turn, where there is one, and the problem set into the template.

    Every literal `{problem}` is replaced and nothing else is: braces of LaTeX stand as they are, in both texts.

    Raises:
        ConfigError: the template has no place for the problem.
    """
    if PLACEHOLDER not in template:
        raise ConfigError(f"prompt template has no place for the problem: got {template!r}; write {PLACEHOLDER} in it")
    user = Message(role="user", content=template.replace(PLACEHOLDER, problem_text))
    return (user,) if system is None else (Message(role="system", content=system), user)


def check_template_arguments(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], *, agent: str) -> None:
    """Refuse arguments that the chat template never reads, or that the renderer sets itself.

    Args:
        tokenizer: with the agent's chat template.
        arguments: `chat_template_kwargs`.
        agent: its name, for the message.

    Raises:
        ConfigError: there is such an argument.
        ModelError: there is no chat template, or it is no Jinja.
    """
    if not arguments:
        return
    template = _GENERATION.sub("", _template_of(tokenizer))
    try:
        read = find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))
    except TemplateError as error:
        raise ModelError(f"the chat template of {_path_of(tokenizer)} is no Jinja: {error}; fix it") from error
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    reserved = _SET_BY_RENDERER.union(parameters, tokenizer.special_tokens_map)
    for name in arguments:
        if name not in read - reserved:
            field = f"pair.agents.{agent}.chat_template_kwargs.{name}"
            why = "the renderer sets it itself" if name in reserved else "the chat template never reads it"
            expected = ", ".join(sorted(read - reserved)) or "none"
            raise ConfigError(
                f"{field} cannot take effect: {why}; expected one of {expected}; leave it out, or set {field}=null"
            )


def render_prompts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[Message]],
    *,
    arguments: Mapping[str, Any] | None = None,
) -> list[tuple[int, ...]]:
    """The ids of each prompt, as the chat template writes them, up to where the agent's turn begins.

    The template alone decides on BOS. One that writes the date writes the same on every day: a run that goes on
    tomorrow has today's prompts. Text of a message that spells a control token (`<|im_end|>`) is tokenised as
    text; the template's own control tokens are not touched.

    Args:
        tokenizer: with the chat template.
        prompts: messages of each prompt.
        arguments: more names that the template reads, and their values.

    Raises:
        ModelError: there is no chat template, or it refuses the messages, or writes nothing.
        DataError: there are no messages, or a message spells a control token and the tokenizer is not a fast one.
    """
    if not all(prompts):
        raise DataError("a prompt has no messages: got 0, expected 1 or more; check the problem's `messages`")
    arguments = arguments or {}
    plain = [
        tuple(Message(role=message.role, content=_plain(message.content)) for message in messages)
        for messages in prompts
    ]
    spelling = {n for n, spells in enumerate(_spell_control(tokenizer, plain)) if spells}
    texts = [_rendered(tokenizer, messages, arguments) for n, messages in enumerate(plain) if n not in spelling]
    encoded = _encoded(tokenizer, texts)
    rendered = [
        _encode_masked(tokenizer, messages, arguments) if n in spelling else tuple(next(encoded))
        for n, messages in enumerate(plain)
    ]
    if not all(rendered):
        raise ModelError(f"the chat template of {_path_of(tokenizer)} writes nothing for a prompt; fix the template")
    return rendered


def is_left_to_write(tokenizer: PreTrainedTokenizerBase, mark: str, *, arguments: Mapping[str, Any]) -> bool:
    """Whether a chat template knows a mark, such as `</think>`, and leaves it to the response.

    With `enable_thinking: false` Qwen3's writes an empty thought into the prompt, mark included: then no response does.

    Args:
        tokenizer: with the chat template.
        mark: text; empty is known to none.
        arguments: more names that the template reads, and their values.
    """
    if not mark or mark not in _template_of(tokenizer):
        return False
    return mark not in _rendered(tokenizer, [Message(role="user", content="1 + 1?")], arguments)


def _path_of(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or "a tokenizer in memory")


def _encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[list[int]]:
    """Ids of each text; many in one call, which takes half as long as one for each, and not all, for its memory."""
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


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    path = _path_of(tokenizer)
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    _template_of(tokenizer)
    try:
        return str(
            tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, strftime_now=_TODAY.strftime, **arguments
            )
        )
    except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        roles = [message.role for message in messages]
        raise ModelError(
            f"the chat template of {path} refuses a prompt with roles {roles}: {error}; "
            "change the prompt's turns or set `pair.agents.<name>.chat_template`"
        ) from error


def _plain(text: str) -> str:
    return re.sub(f"[{NONCHARACTER}{_MASK}]", "\ufffd", valid_unicode(text))


def _spell_control(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[Message]]) -> list[bool]:
    """Whether the text of a message of each prompt spells a control token."""
    control = control_ids(tokenizer)
    rows = _encoded(tokenizer, [message.content for messages in prompts for message in messages])
    rows_of_prompts = [list(islice(rows, len(messages))) for messages in prompts]
    return [not control.isdisjoint(chain.from_iterable(rows)) for rows in rows_of_prompts]


def _encode_masked(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]
) -> tuple[int, ...]:
    """Names the template's control tokens so that no text spells them, and leaves the messages' text as it is."""
    if not tokenizer.is_fast:
        path = _path_of(tokenizer)
        raise DataError(
            f"a prompt spells a control token of {path}, whose tokenizer cannot read it as text; "
            "leave the problem out or give the model a tokenizer.json"
        )
    ids = special_token_ids(tokenizer)
    spelled = re.compile("|".join(re.escape(token) for token in sorted(ids, key=len, reverse=True)))
    masked_texts: list[str] = []

    def mask(match: re.Match[str]) -> str:
        masked_texts.append(match.group())
        return f"{_MASK}{len(masked_texts) - 1}{_MASK}"

    masked = [Message(role=message.role, content=spelled.sub(mask, message.content)) for message in messages]
    text = spelled.sub(lambda match: unspellable(ids[match.group()]), _rendered(tokenizer, masked, arguments))
    text = re.sub(f"{_MASK}([0-9]+){_MASK}", lambda match: masked_texts[int(match.group(1))], text)
    return tuple(_backend(tokenizer).encode(text, add_special_tokens=False).ids)


@lru_cache(maxsize=8)
def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    return unspellable_backend(tokenizer)
