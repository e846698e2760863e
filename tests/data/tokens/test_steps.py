"""Where a step and the reasoning end, in tokenizers that spell blank lines in every way."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerBase

from hacpo_core.data.boxed import first_box_end
from hacpo_core.data.tokens.steps import Step, StepReader
from tests import tokenizers_zoo as zoo


def joined_lines() -> PreTrainedTokenizerBase:
    """One with tokens that hold blank lines and what stands before them, as Llama 3's and Qwen's have."""
    tokenizer = zoo.byte_level()
    tokenizer.add_tokens(["\n\n", ".\n\n", "4\n\n\n", "}\n\n"])
    return tokenizer


ZOO: dict[str, tuple[Callable[[], PreTrainedTokenizerBase], str]] = {
    "character": (zoo.character, "\n\n"),
    "byte_level": (zoo.byte_level, "\n\n"),
    "joined_lines": (joined_lines, "\n\n"),
    "metaspace": (zoo.metaspace, "\n\n"),
    # These two cannot write a line.
    "word_piece": (zoo.word_piece, "."),
}


def reader_of(kind: str, *, closing_mark: str = "") -> tuple[StepReader, PreTrainedTokenizerBase, str]:
    make, step_end = ZOO[kind]
    tokenizer = make()
    return StepReader(tokenizer, step_end=step_end, closing_mark=closing_mark), tokenizer, step_end


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def steps_of(reader: StepReader, token_ids: list[int]) -> list[Step]:
    """All steps of some tokens, the reasoning's end the last one."""
    steps: list[Step] = []
    before, text = 0, ""
    while before < len(token_ids):
        step = reader.read(token_ids[:before], text, token_ids[before:])
        steps.append(step)
        before, text = before + step.num_tokens, text + step.text
        if step.end != "step":
            break
    return steps


@pytest.mark.parametrize("kind", ZOO)
def test_steps_end_with_the_token_that_completes_their_end(kind: str) -> None:
    reader, tokenizer, step_end = reader_of(kind)
    token_ids = ids_of(tokenizer, f"x = 3{step_end}y = 4 and{step_end}it is \\boxed{{7}} indeed")
    steps = steps_of(reader, token_ids)
    assert [step.end for step in steps] == ["step", "step", "reasoning"]
    assert all(step_end in step.text for step in steps[:2])
    done = 0
    for step in steps:
        here = token_ids[done : done + step.num_tokens]
        one_less = reader.read(token_ids[:done], "".join(s.text for s in steps[: steps.index(step)]), here[:-1])
        assert one_less.end is None, "the last token was needed"
        done += step.num_tokens
    assert "\\boxed{7}" in "".join(steps[-1].text.split())
    assert done < len(token_ids), "what follows the box is left"


@pytest.mark.parametrize("kind", ["character", "byte_level", "joined_lines", "metaspace"])
def test_reasoning_ends_at_the_same_token_wherever_the_beam_was_cut(kind: str) -> None:
    reader, tokenizer, _ = reader_of(kind)
    token_ids = ids_of(tokenizer, "so \\boxed{42} is it")
    whole = reader.read([], "", token_ids)
    assert whole.end == "reasoning"
    for cut in range(1, whole.num_tokens):
        first = reader.read([], "", token_ids[:cut])
        assert first == Step(cut, first.text, None)
        rest = reader.read(token_ids[:cut], first.text, token_ids[cut:])
        assert (rest.end, cut + rest.num_tokens) == ("reasoning", whole.num_tokens)
        assert first.text + rest.text == whole.text


@pytest.mark.parametrize("kind", ["character", "byte_level", "joined_lines", "metaspace"])
def test_mark_ends_the_reasoning_and_a_box_does_not(kind: str) -> None:
    reader, tokenizer, _ = reader_of(kind, closing_mark="</think>")
    token_ids = ids_of(tokenizer, "is it \\boxed{1}? no</think> \\boxed{2}")
    step = reader.read([], "", token_ids)
    assert step.end == "reasoning"
    assert step.text.endswith("</think>")
    assert reader.read([], "", token_ids[: step.num_tokens - 1]).end is None


def test_mark_may_be_a_special_token() -> None:
    tokenizer = zoo.byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    reader = StepReader(tokenizer, step_end="\n\n", closing_mark="</think>")
    (mark,) = zoo.ids_of(tokenizer, "</think>")
    token_ids = [*ids_of(tokenizer, "hm"), mark, *ids_of(tokenizer, "7")]
    assert reader.read([], "", token_ids) == Step(len(token_ids) - 1, "hm</think>", "reasoning")
    assert mark in reader.stop_ids


def test_tokens_that_hold_an_end_stop_the_sampler() -> None:
    reader, tokenizer, _ = reader_of("joined_lines", closing_mark="</think>")
    assert {zoo.decoded(tokenizer, [i]) for i in reader.stop_ids} == {"\n\n", ".\n\n", "4\n\n\n", "}\n\n"}
    assert reader_of("character")[0].stop_ids == frozenset()
    assert len(StepReader(zoo.character(), step_end="\n", closing_mark="").stop_ids) == 1


def test_half_a_character_before_the_end_moves_no_cut() -> None:
    reader, tokenizer, _ = reader_of("metaspace")
    token_ids = ids_of(tokenizer, "a😀\n\nb")
    step = reader.read([], "", token_ids)
    assert zoo.decoded(tokenizer, token_ids[: step.num_tokens]).endswith("😀\n\n")
    assert step.end == "step"


def test_box_that_began_in_a_step_before_is_found_behind_a_long_text() -> None:
    reader, tokenizer, _ = reader_of("character")
    before = "x" * 5000 + "\\boxed{4"
    step = reader.read(ids_of(tokenizer, before), before, ids_of(tokenizer, "2} and"))
    assert step == Step(2, "2}", "reasoning")


def test_nothing_is_no_step() -> None:
    assert reader_of("character")[0].read([5], "x", []) == Step(0, "", None)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a \\boxed{4", None),
        ("a \\boxed{4} b \\boxed{5}", 11),
        ("\\boxed 4 then", None),
        ("\\boxed{}", None),
        ("\\boxed{\\frac{1}{2}}.", 19),
        ("\\fbox{1}", 8),
        ("{x} \\boxed{1}", 13),
    ],
)
def test_first_box_ends_with_its_brace(text: str, end: int | None) -> None:
    assert first_box_end(text) == end
