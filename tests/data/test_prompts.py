"""Prompts: the template's control tokens and no others."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from hacpo_core.data.prompts import (
    check_generation_prompt,
    check_template_arguments,
    format_messages,
    render_prompts,
    turn_end_id,
)
from hacpo_core.data.tokens.control_tokens import control_ids, special_token_ids
from hacpo_core.errors import ConfigError, ModelError
from hacpo_core.records import Message
from tests import tokenizers_zoo as zoo

CHARACTER, BYTE_LEVEL, WORD_PIECE, METASPACE = zoo.TOKENIZERS.values()
FAST = [CHARACTER, BYTE_LEVEL, WORD_PIECE, METASPACE]
SPELLINGS = sorted({token for tokenizer in FAST for token in special_token_ids(tokenizer)})

every_fast = pytest.mark.parametrize("tokenizer", FAST, ids=["character", "byte_level", "word_piece", "metaspace"])


def user(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: tuple[Message, ...]) -> tuple[int, ...]:
    return render_prompts(tokenizer, [messages])[0]


def controls(tokenizer: PreTrainedTokenizerBase, token_ids: tuple[int, ...]) -> list[str]:
    return zoo.tokens_of(tokenizer, [token_id for token_id in token_ids if token_id in control_ids(tokenizer)])


def test_prompt_is_the_template_with_the_agents_turn_opened() -> None:
    token_ids = render_prompt(BYTE_LEVEL, (Message(role="system", content="Add."), *user("1 + 1?")))
    assert zoo.decoded(BYTE_LEVEL, token_ids) == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert controls(BYTE_LEVEL, token_ids) == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]


@every_fast
def test_prompt_of_a_plain_problem_is_what_transformers_makes_of_it(tokenizer: PreTrainedTokenizerBase) -> None:
    conversation = [{"role": "user", "content": "Let x = 3. Find x."}]
    expected: Any = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)
    assert render_prompt(tokenizer, user("Let x = 3. Find x.")) == tuple(expected["input_ids"])


THINKING = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>\n' }}{%- endif %}"
    "{%- endif %}"
)


def thinking_tokenizer() -> PreTrainedTokenizerBase:
    """One whose template reads enable_thinking, as Qwen3's does."""
    tokenizer = zoo.byte_level()
    tokenizer.chat_template = THINKING
    return tokenizer


@pytest.mark.parametrize("problem", ["1 + 1?", "1 + 1<|im_end|>?"])
def test_arguments_reach_the_template_of_plain_and_of_masked_prompts(problem: str) -> None:
    tokenizer = thinking_tokenizer()
    open_ids, closed_ids = (
        render_prompts(tokenizer, [user(problem)], arguments=arguments)[0]
        for arguments in (None, {"enable_thinking": False})
    )
    assert zoo.decoded(tokenizer, closed_ids) == zoo.decoded(tokenizer, open_ids) + "<think></think>\n"
    assert render_prompts(tokenizer, [user(problem)], arguments={"enable_thinking": True}) == [open_ids]


def test_template_that_writes_the_date_writes_the_same_on_every_day() -> None:
    dated = zoo.byte_level()
    dated.chat_template = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    assert zoo.decoded(dated, render_prompt(dated, user("1 + 1?"))) == "26 Jul 2024 1 + 1?"


@every_fast
def test_prompts_read_together_are_those_read_one_by_one(tokenizer: PreTrainedTokenizerBase) -> None:
    spelling = sorted(special_token_ids(tokenizer))[-1]
    texts = ["1 + 1?", f"a {spelling} b", "x", f"{spelling}", "y and z"]
    prompts = [user(text) for text in texts]
    if tokenizer is BYTE_LEVEL:  # a prompt whose first message spells one; the others' messages stay theirs
        prompts.insert(1, (Message(role="system", content=spelling), *user("plain")))
        prompts.insert(2, (Message(role="system", content="plain"), *user(spelling)))
    assert render_prompts(tokenizer, prompts) == [render_prompt(tokenizer, messages) for messages in prompts]
    assert render_prompts(tokenizer, []) == []


@every_fast
@settings(deadline=None)
@given(parts=st.lists(st.one_of(st.sampled_from(SPELLINGS), st.text(st.characters(exclude_categories=())))))
def test_no_problem_adds_a_control_token(tokenizer: PreTrainedTokenizerBase, parts: list[str]) -> None:
    token_ids = render_prompt(tokenizer, user("".join(parts)))
    assert controls(tokenizer, token_ids) == controls(tokenizer, render_prompt(tokenizer, user("x")))


def test_problem_that_spells_the_internal_names_gains_nothing_by_it() -> None:
    eos_name = f"\ufdd0 control {BYTE_LEVEL.eos_token_id} \ufdd0"
    token_ids = render_prompt(BYTE_LEVEL, user(f"\ufdd10\ufdd1 {eos_name} <|box|>"))
    assert controls(BYTE_LEVEL, token_ids) == controls(BYTE_LEVEL, render_prompt(BYTE_LEVEL, user("x")))
    assert "<|box|><|im_end|>" in zoo.decoded(BYTE_LEVEL, token_ids)


def test_longer_of_two_special_tokens_wins_where_a_problem_spells_one_too() -> None:
    tokenizer = zoo.byte_level()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_start|>assistant"]})
    expected = ["<|im_start|>", "<|im_end|>", "<|im_start|>assistant"]
    assert controls(tokenizer, render_prompt(tokenizer, user("x"))) == expected
    assert controls(tokenizer, render_prompt(tokenizer, user("<|im_start|>assistant"))) == expected


def test_text_beside_a_spelled_token_keeps_its_tokens() -> None:
    tokens = zoo.tokens_of(METASPACE, render_prompt(METASPACE, user("The answer </s> the answer")))
    assert tokens[:4] == ["<s>", "[INST]", "▁The", "▁answer"]
    assert tokens[4:9] == ["▁", "<", "/", "s", ">"]
    assert tokens[9:11] == ["▁the", "▁answer"]


# The token with which a turn ends.


def test_end_of_a_turn_may_depend_on_the_templates_arguments() -> None:
    tokenizer = zoo.byte_level()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content + ('<|box|>' if boxed else '<|im_end|>') }}{% endfor %}"
    )
    found = [turn_end_id(tokenizer, arguments={"boxed": boxed}) for boxed in (True, False)]
    assert found == tokenizer.convert_tokens_to_ids(["<|box|>", "<|im_end|>"])


def test_template_that_takes_no_assistants_turn_has_no_end_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = zoo.byte_level()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('users only') }}{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert turn_end_id(tokenizer) is None
    assert "users only" in caplog.text
    assert "responses end in the tokenizer's EOS" in caplog.text


def test_bos_is_there_as_often_as_the_template_writes_it() -> None:
    assert METASPACE("a")["input_ids"][0] == METASPACE.bos_token_id
    assert [render_prompt(METASPACE, user(t)).count(METASPACE.bos_token_id) for t in ("a", "a </s>")] == [1, 1]
    assert BYTE_LEVEL("a")["input_ids"][0] == BYTE_LEVEL.bos_token_id
    assert BYTE_LEVEL.bos_token_id not in render_prompt(BYTE_LEVEL, user("a"))


@every_fast
def test_problem_that_spells_control_tokens_is_read_as_text(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = render_prompt(tokenizer, user("What does x mean?"))
    for spelling in (*SPELLINGS, "".join(SPELLINGS), "<|im<eos>_end|></</s>s>[[EOS]EOS]"):
        spelled = render_prompt(tokenizer, user(f"What does {spelling} mean?"))
        assert controls(tokenizer, spelled) == controls(tokenizer, plain), spelling
        assert zoo.decoded(tokenizer, spelled) == zoo.decoded(tokenizer, plain).replace(" x ", f" {spelling} ")


def test_template_that_cannot_be_used_is_named() -> None:
    for template, why in {
        "{# nothing #}": "template of /models/base gives an empty prompt",
        "{{ messages + 1 }}": "template of /models/base rejects a prompt with roles",
        "": "/models/base has no chat template; add a `chat_template`",
    }.items():
        tokenizer = zoo.byte_level()
        tokenizer.chat_template, tokenizer.name_or_path = template or None, "/models/base"
        with pytest.raises(ModelError, match=why):
            render_prompt(tokenizer, user("a"))
    with pytest.raises(ModelError, match=r"rejects a prompt with roles \['system', 'user'\]: System role not supp"):
        render_prompt(METASPACE, (Message(role="system", content="Add."), *user("a")))
    for name, reason in {"enable_thinkin": "the chat template does not use it", "tools": "the renderer"}.items():
        with pytest.raises(ConfigError, match=rf"qwen\.chat_template_kwargs\.{name} cannot take effect: {reason}"):
            check_template_arguments(thinking_tokenizer(), {"enable_thinking": False, name: 1}, agent="qwen")


def test_format_replaces_the_placeholder_and_leaves_every_brace() -> None:
    template = "{problem}\nPut your final answer within \\boxed{}. {{x}}"
    assert format_messages(template, "Let \\frac{1}{2} {problem}", "") == (
        Message(role="system", content=""),
        Message(role="user", content="Let \\frac{1}{2} {problem}\nPut your final answer within \\boxed{}. {{x}}"),
    )


def test_end_of_a_turn_is_the_control_token_behind_the_assistants_content() -> None:
    for template, expected in {
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}": "<|im_end|>",
        "{% for m in messages %}{{ m.content | trim }}<|box|><|im_end|>{% endfor %}": "<|box|>",
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}": None,
        "{% for m in messages %}{{ m.content }}\nEnd of turn.<|im_end|>{% endfor %}": None,
    }.items():
        tokenizer = zoo.byte_level()
        tokenizer.chat_template = template
        assert turn_end_id(tokenizer) == (expected and tokenizer.convert_tokens_to_ids(expected)), template


def test_prompt_that_does_not_begin_the_assistants_turn_is_refused() -> None:
    tokenizer = zoo.byte_level()
    for template, missing in (
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", "assistant:"),
        ("{% for m in messages %}{{ ('Q ' if m.role == 'user' else '') + m.content + ' A ' }}{% endfor %}", None),
        (BYTE_LEVEL.chat_template, None),
    ):
        tokenizer.chat_template = template
        if missing is None:
            check_generation_prompt(tokenizer)
            continue
        with pytest.raises(ModelError, match=rf"writes '{missing}.*' before an assistant's turn, but not at"):
            check_generation_prompt(tokenizer)
    for constant in ("templates/qwen.jinja", "{{ 'Q: ' }}{% if add_generation_prompt %}A: {% endif %}"):
        tokenizer.chat_template = constant
        with pytest.raises(ModelError, match=r"writes '.*' for any message; set .*a template that writes the messages"):
            check_generation_prompt(tokenizer)
