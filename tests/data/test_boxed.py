"""The boxes of a text."""

import time

import pytest

from hacpo_core.data.boxed import boxed


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"so \boxed{1} or \boxed{\frac{1}{2}}", ["1", r"\frac{1}{2}"]),
        (r"\boxed 2 and \fbox{3}.", ["2", "3"]),
        (r"\boxed{a \boxed{b}} then \boxed{c}", ["b", "c"]),
        (r"\boxed{} \boxed{ } \boxed{unfinished", []),
        (r"\boxed{x} \boxed{y", ["x"]),
    ],
)
def test_complete_boxes_are_found_in_their_order(text: str, contents: list[str]) -> None:
    assert boxed(text) == contents


def test_nesting_costs_no_time() -> None:
    started = time.process_time()
    assert boxed(r"\boxed{" * 25_000 + "1" + "}" * 25_000) == ["1"]
    assert time.process_time() - started < 1.0
