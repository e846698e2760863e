"""The authors' reward: the last box, MATH's published normal form, equality of strings."""

import json

import pytest

from hacpo_core.records import Gold
from hacpo_core.verify.normalised import boxed_answer, normal_form
from hacpo_core.verify.pool import VerifierPool
from tests.verify.test_equality import PAIRS


def test_last_box_and_normal_form_are_those_of_math() -> None:
    lines = (PAIRS / "normalised.jsonl").read_text(encoding="utf-8").splitlines()
    functions = {"box": boxed_answer, "form": normal_form}
    cases = [(kind, text, expected, functions[kind](text)) for kind, text, expected in map(json.loads, lines)]
    assert [case for case in cases if case[2] != case[3]] == []


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
