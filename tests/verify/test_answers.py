"""Where the answer stands in a response."""

import json
import time
from itertools import product

import pytest

from hacpo_core.records import AnswerStyle
from hacpo_core.verify.answers import MAX_TEXT_CHARS, after_reasoning, extract_answer, normalise
from tests.verify.test_equality import PAIRS


def test_answers_are_found_where_each_style_looks() -> None:
    lines = (PAIRS / "extracted.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [(style, text, answer, extract_answer(text, style=style)) for style, text, answer in map(json.loads, lines)]
    assert [case for case in cases if case[2] != case[3]] == []


def test_only_the_end_of_a_long_text_is_read() -> None:
    assert extract_answer("\\boxed{1}" + "x" * MAX_TEXT_CHARS, style="boxed") is None
    assert extract_answer("x" * MAX_TEXT_CHARS + "\\boxed{1}", style="boxed") == "1"


HOSTILE_UNITS = (
    *("\\boxed{", "{", "}", "$", "$1", "\\(", "\\[", "\\", "\\\\", "*"),
    *("1,", "1,234", "-", "9", ".", "a ", " ", "\n", "\x00", "\ud800"),
    *("answer to ", "answer is ", "answer:", "####", '"answer": "', "not ", ", and so "),
)


def test_extraction_of_a_hostile_megabyte_takes_under_two_seconds() -> None:
    styles: tuple[AnswerStyle, ...] = ("boxed", "last_number", "plain", "auto")
    slow = []
    for style, unit in product(styles, HOSTILE_UNITS):
        start = time.process_time()
        extract_answer(unit * (1_000_000 // len(unit)), style=style)
        slow += [(style, unit)] * (time.process_time() - start > 2.0)
    assert slow == []


def test_normalise_keeps_what_carries_meaning() -> None:
    assert normalise(" $16$\\\\\n\\noindent") == "16"
    assert normalise("\\$1{,}000.") == "1{,}000"
    assert normalise("1  2") == "1 2"
    assert normalise("-3") == "-3"


@pytest.mark.parametrize(
    ("text", "marked", "required"),
    [
        ("<think>so \\boxed{3}</think>\n\\boxed{4}", "\n\\boxed{4}", "\n\\boxed{4}"),
        ("so \\boxed{3}</think> It is 4.", " It is 4.", " It is 4."),  # the template opened the block
        ("<think>so \\boxed{3}", "", ""),
        ("\\boxed{4}", "\\boxed{4}", ""),
        ("<think>a</think>4<think>\\boxed{3}", "4", "4"),
        ("a</think>b</think>c", "c", "c"),
    ],
)
def test_answer_is_behind_the_reasoning(text: str, marked: str, required: str) -> None:
    assert after_reasoning(text, end="</think>", is_required=False) == marked
    assert after_reasoning(text, end="</think>", is_required=True) == required


def test_mark_of_another_family_and_one_without_a_slash() -> None:
    assert after_reasoning("[THINK]3[/THINK]4[THINK]5", end="[/THINK]", is_required=True) == "4"
    assert after_reasoning("3 ### 4", end="###", is_required=True) == " 4"
