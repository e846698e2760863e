"""The authors' reward: the last box, MATH's published normal form, equality of strings."""

from __future__ import annotations

import pytest

from hacpo_core.records import Gold
from hacpo_core.verify.normalised import boxed_answer, normal_form
from hacpo_core.verify.pool import VerifierPool


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so $x = \boxed{7}$.", "7"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"the answer is $\boxed 2$.", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{3} and then \boxed{4 is cut", None),  # the last one does not close
        (r"\boxed{\left\{ x \right.}", None),  # an escaped brace counts
        (r"\boxed{3} and \boxed", None),
        (r"\fbox{42}", None),
        ("no box: 3", None),
    ],
)
def test_last_box_counts_and_no_other(text: str, content: str | None) -> None:
    assert boxed_answer(text) == content


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("1\n2", "12"),
        (r"1{,}\!000", "1{,}000"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        (r"\tfrac{1}{2}", r"\frac{1}{2}"),
        (r"\dfrac{x+1}{2}", r"\frac{x+1}{2}"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"90^{\circ}", "90"),
        (r"90^\circ", "90"),
        (r"\$18", "18"),
        ("$18$", "$18$"),  # a bare dollar stays
        (r"5\text{ cm}", "5"),
        (r"5\text{cm}", r"5\text{cm}"),  # only "\text{ " begins a unit
        (r"5\text{ m }3\text{ s}", r"5\text{m}3\text{s}"),  # two are no unit on the right
        (r"50\%", "50"),
        ("50%", "50%"),
        (".25", "0.25"),
        (r"\frac{.5}{2}", r"\frac{0.5}{2}"),
        ("x = .5", r"\frac{1}{2}"),
        ("k = 7", "7"),
        ("k=7", "7"),
        ("abc=7", "abc=7"),
        ("x=y=7", "x=y=7"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"2\sqrt{3}", r"2\sqrt{3}"),
        (r"\sqrt 3", r"\sqrt{}3"),  # blanks go after roots: as published
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac1b", r"\frac{1}{b}"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        (r"\frac{72}1", r"\frac{72}1"),
        (r"\frac 1 2 + \frac34", r"\frac{1}{2}+\frac{3}{4}"),
        (r"\frac1", r"\frac1"),
        (r"\sqrt", r"\sqrt"),
        ("0.5", r"\frac{1}{2}"),
        ("0.50", "0.50"),
        ("3/4", r"\frac{3}{4}"),
        ("-3/4", r"\frac{-3}{4}"),
        ("03/4", "03/4"),
        ("a/b", "a/b"),
        ("1/2/3", "1/2/3"),
        ("", ""),
    ],
)
def test_normal_form_is_that_of_math(answer: str, form: str) -> None:
    assert normal_form(answer) == form


@pytest.mark.parametrize(
    ("response", "gold", "is_right"),
    [
        (r"\boxed{\dfrac{1}{2}}", "0.5", True),
        (r"\boxed{1/2}", r"\frac12", True),
        (r"\boxed{x = 4}", "4", True),
        (r"\boxed{\sqrt{2}/2}", r"\frac{\sqrt{2}}{2}", False),  # equal numbers, other strings
        (r"\boxed{4.0}", "4", False),
        (r"\boxed{\frac{4}{17}}", r"$\frac{4}{17}$", True),
        (r"\boxed{$4$}", "4", False),
        (r"the answer is 4", "4", False),
        (r"\boxed{4} \boxed{", "4", False),
    ],
)
def test_reward_is_equality_of_normal_forms(response: str, gold: str, is_right: bool) -> None:
    # One MiB is too little for any worker.
    with VerifierPool(num_workers=1, timeout_s=1, memory_mb=1, style="boxed", equality="normalised") as pool:
        for reference in (gold, Gold(gold, unit="cm", tolerance=1.0)):
            (verdict,) = pool.verify([response], [reference])
            assert (verdict.status, verdict.reward) == (("correct", 1.0) if is_right else ("wrong", 0.0))
            assert verdict.extracted == boxed_answer(response)


@pytest.mark.timeout(60)  # far above a second, and far below what a quadratic algorithm takes
def test_long_responses_take_no_time() -> None:
    texts = ["\\boxed{" * 100_000, "\\boxed{" + "{}" * 300_000 + "}", "\\boxed{" + "\\frac1\\sqrt2=" * 50_000 + "}"]
    for text in texts:
        content = boxed_answer(text)
        assert content is None or normal_form(content)
