"""Control tokens of a conversation, and tokenizers in which no text can spell them."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

if TYPE_CHECKING:  # importing transformers takes two seconds, which planning does not need
    from transformers import PreTrainedTokenizerBase

# Unicode reserves this noncharacter for internal use, so that it does not occur in valid text.
NONCHARACTER = "\ufdd0"
TEXT_LOCK = threading.RLock()
"""held while tokenizing: agents side by side work in threads, and tokenizers are not thread-safe"""


def tokenizers_match(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    """Whether both tokenizers give ids the same meaning and have the same chat template, wherever they were loaded.

    No false positives. Equal tokenizers that are not recognised as equal are retokenised, which is slower but correct.
    """
    if a is b:
        return True
    if a.chat_template != b.chat_template or a.special_tokens_map != b.special_tokens_map:
        return False
    return special_token_ids(a) == special_token_ids(b) and _backend_state(a) == _backend_state(b)


_MARK = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_CONVERSATION = tuple({"role": role, "content": "1"} for role in ("user", "assistant", "user"))


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Text and id of every special token: named, extra, added with the special flag, or a mark of a turn.

    A mark is an added token in brackets that the chat template writes between the messages of a conversation.
    DeepSeek's `<｜User｜>` lacks the flag. Gemma's line break is an added token too, but ordinary text.
    """
    turns = _turns(tokenizer)
    added_tokens = {
        str(token): token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special or (_MARK.fullmatch(str(token)) and str(token) in turns)
    }
    named_tokens = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return added_tokens | named_tokens


def _turns(tokenizer: PreTrainedTokenizerBase) -> str:
    """A conversation by the chat template; empty without a template, or if it rejects the conversation."""
    if not tokenizer.chat_template:
        return ""
    try:
        return str(tokenizer.apply_chat_template(list(_CONVERSATION), tokenize=False))
    except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError):  # it may demand other roles
        return ""


def control_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of control tokens: every special token except UNK, which stands for text without a token.

    UNK counts as a control token if another role (EOS, PAD, ...) has the same id.
    """
    roles = {token for role, token in tokenizer.special_tokens_map.items() if role != "unk_token"}
    return frozenset(
        token_id
        for token, token_id in special_token_ids(tokenizer).items()
        if token != tokenizer.unk_token or token in roles
    )


def unspellable(token_id: int) -> str:
    """A token name that no text can spell: pieces of byte-level, metaspace and word models contain no literal space."""
    return f"{NONCHARACTER} control {token_id} {NONCHARACTER}"


def unspellable_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the fast tokenizer whose special tokens have names that no text can spell; their ids stay the same.

    `split_special_tokens=True` is not enough: it hides added tokens, but a Unigram or WordPiece model with `</s>` or
    `[SEP]` in its own vocabulary still finds it there.
    """
    return _unspellable_copy(tokenizer, _backend_state(tokenizer))


def response_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy for encoding responses: spelled control tokens are plain text, and no space is added in front."""
    state = _backend_state(tokenizer)
    _drop_prefix_space(state["pre_tokenizer"])
    backend = _unspellable_copy(tokenizer, state)
    backend.encode_special_tokens = True
    return backend


def _unspellable_copy(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any]) -> Tokenizer:
    ids = special_token_ids(tokenizer)
    names = {token: unspellable(token_id) for token, token_id in ids.items()}
    for added_token in state["added_tokens"]:
        added_token["content"] = names.get(added_token["content"], added_token["content"])
    state["post_processor"] = None
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [
            [left, right]
            for left, right in model["merges"]
            if not {left, right, left + right.removeprefix(prefix)} & names.keys()
        ]
    backend = Tokenizer.from_str(json.dumps(state))
    assert all(backend.token_to_id(unspellable(token_id)) == token_id for token_id in ids.values())
    assert backend.get_vocab_size() == tokenizer.backend_tokenizer.get_vocab_size()
    return backend


def _drop_prefix_space(pre_tokenizer: dict[str, Any] | None) -> None:
    # Byte-level decoding keeps every space, so a space that the tokenizer adds in front would change the text.
    if pre_tokenizer is None:
        return
    if pre_tokenizer["type"] == "ByteLevel":
        pre_tokenizer["add_prefix_space"] = False
    for part in pre_tokenizer.get("pretokenizers", ()):
        _drop_prefix_space(part)


def _backend_state(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    # These are settings of the last call, not properties of the tokenizer.
    state["truncation"] = state["padding"] = None
    return state
