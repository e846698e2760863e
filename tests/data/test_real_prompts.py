"""Prompts by the chat templates of real models: BOS, thinking, control tokens that a problem spells."""

import pytest

from hacpo_core.data.prompts import check_template_arguments, format_messages, leaves_mark_to_response, render_prompts
from hacpo_core.data.tokens.control_tokens import control_ids, special_token_ids
from hacpo_core.errors import ConfigError
from hacpo_core.records import Message
from tests.data.tokens.real_tokenizers import SPACE_MARK, WITH_TEMPLATE, problems, real_tokenizer

pytestmark = pytest.mark.system
every_template = pytest.mark.parametrize("name", WITH_TEMPLATE)
ENDS = {
    "smollm2": "<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "<|im_end|>\n<|im_start|>assistant\n",
    "llama3_2": "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma3": "<end_of_turn>\n<start_of_turn>model\n",
    "deepseek_v3": "<｜Assistant｜>",
}
CONTROL = {
    "smollm2": ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>"],
    "qwen3": ["<|im_start|>", "<|im_end|>", "<|im_start|>"],
    "llama3_2": [
        *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    ],
    "gemma3": ["<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_turn>"],
    "deepseek_v3": ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
}
"""control tokens of a prompt of one user message: BOS once where the template writes it, else never"""


def control_tokens(name: str, ids: tuple[int, ...]) -> list[str]:
    tokenizer = real_tokenizer(name)
    control = control_ids(tokenizer)
    return [str(tokenizer.convert_ids_to_tokens(token_id)) for token_id in ids if token_id in control]


def text_of(name: str, ids: tuple[int, ...]) -> str:
    return str(real_tokenizer(name).decode(list(ids), clean_up_tokenization_spaces=False))


@every_template
def test_every_real_problem_is_rendered_whole_between_the_templates_own_tokens(name: str) -> None:
    texts = problems()
    assert len(texts) == 1848
    prompts = [format_messages("{problem}\n\nPlease reason step by step.", text, None) for text in texts]
    rendered = render_prompts(real_tokenizer(name), prompts)
    for text, ids in zip(texts, rendered, strict=True):
        assert control_tokens(name, ids) == CONTROL[name]
        assert text_of(name, ids).endswith(f"{text}\n\nPlease reason step by step.{ENDS[name]}")


@every_template
def test_control_tokens_spelled_in_a_problem_stay_text(name: str) -> None:
    tokens = sorted({token for each in WITH_TEMPLATE for token in special_token_ids(real_tokenizer(each))})
    texts = [f"What does {token} mean in 1 + 1? {token}" for token in tokens]
    rendered = render_prompts(real_tokenizer(name), [(Message("user", text),) for text in texts])
    for text, ids in zip(texts, rendered, strict=True):
        assert control_tokens(name, ids) == CONTROL[name]
        kept = text.replace(SPACE_MARK, " ") if name == "gemma3" else text  # how it writes a space
        assert kept in text_of(name, ids)


@every_template
def test_system_message_is_rendered_once(name: str) -> None:
    (ids,) = render_prompts(real_tokenizer(name), [(Message("system", "Be brief: é."), Message("user", "1 + 1?"))])
    assert text_of(name, ids).count("Be brief: é.") == 1
    assert "You are" not in text_of(name, ids), "the default system message is replaced"


def test_qwen3_without_thinking_gets_an_empty_thought_and_has_no_mark_left_to_write() -> None:
    tokenizer, prompt = real_tokenizer("qwen3"), [(Message("user", "1 + 1?"),)]
    (thinks,), (plain,) = (
        render_prompts(tokenizer, prompt, arguments=arguments) for arguments in ({}, {"enable_thinking": False})
    )
    assert text_of("qwen3", plain) == text_of("qwen3", thinks) + "<think>\n\n</think>\n\n"
    check_template_arguments(tokenizer, {"enable_thinking": False}, agent="a")
    assert leaves_mark_to_response(tokenizer, "</think>", arguments={})
    assert not leaves_mark_to_response(tokenizer, "</think>", arguments={"enable_thinking": False})


@pytest.mark.parametrize("name", [name for name in WITH_TEMPLATE if name != "qwen3"])
def test_template_without_the_switch_refuses_it_and_leaves_no_mark(name: str) -> None:
    with pytest.raises(ConfigError, match=r"kwargs.enable_thinking cannot take effect: the chat template does not use"):
        check_template_arguments(real_tokenizer(name), {"enable_thinking": False}, agent="a")
    assert not leaves_mark_to_response(real_tokenizer(name), "</think>", arguments={})


def test_llama_writes_the_fixed_date() -> None:
    (ids,) = render_prompts(real_tokenizer("llama3_2"), [(Message("user", "1 + 1?"),)])
    assert "Today Date: 26 Jul 2024" in text_of("llama3_2", ids)
