"""Verdicts on pairs that readers brought up, and on gold answers of real data, rewritten and changed."""

import os
import random
from pathlib import Path
from typing import get_args

import pytest

from hacpo_core.data.rows import read_rows
from hacpo_core.verify.answers import UNREADABLE
from hacpo_core.verify.equality import EQUALITY, answers_equal, is_readable
from hacpo_core.verify.pool import VerifierPool
from hacpo_core.verify.values import Answer
from tests.verify.known import KNOWN, OF_TYPES
from tests.verify.rewritten import REWRITTEN, changes

PAIRS = Path(__file__).parent / "pairs"
"""files with a gold answer and an answer in each line, by verdict"""


def pairs(verdict: str) -> list[tuple[str, str]]:
    """Gold answers and answers of a file of PAIRS, `right` or `wrong`."""
    lines = (PAIRS / f"{verdict}.txt").read_text(encoding="utf-8").splitlines()
    return [(gold, answer) for gold, _, answer in (line.partition(" <= ") for line in lines)]


def test_right_answers_are_accepted_and_wrong_ones_refused() -> None:
    mistakes = [("right", *pair) for pair in pairs("right") if not answers_equal(pair[1], pair[0])]
    mistakes += [("wrong", *pair) for pair in pairs("wrong") if answers_equal(pair[1], pair[0])]
    assert mistakes == []


def test_such_gold_answers_can_be_read() -> None:
    golds = {gold: None for verdict in ("right", "wrong") for gold, _ in pairs(verdict)}
    assert [gold for gold in golds if not is_readable(gold)] == []


UNREADABLE_GOLDS = (
    *(r"\frac{1}{2", "There is no such number at all", r"\frac{1}{0}", "12 5", "1 2", "nan", "None", "N/A"),
    *("110 The answer is: 110", r"p \lor q", r"10 \text{ minus a bit}", "(1, 2", r"\sqrt{"),
)


def test_gold_answers_that_cannot_be_read_leave_other_spellings_unscored() -> None:
    assert [gold for gold in UNREADABLE_GOLDS if is_readable(gold)] == []
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=1024, style="plain") as pool:
        same, other = pool.verify([UNREADABLE_GOLDS[0], "0.5"], [UNREADABLE_GOLDS[0]] * 2)
        assert pool.unreadable([UNREADABLE_GOLDS[0], "3", r"\frac{1}{2}"]) == [UNREADABLE_GOLDS[0]]
    assert (same.status, other.status, other.reason) == ("correct", "unscored", UNREADABLE)


def test_a_gold_answer_beyond_reading_is_compared_by_its_tokens() -> None:
    assert answers_equal(r"\frac{1}{ 2", r"\frac{1}{2")
    assert answers_equal(r"p \land \lnot q \rightarrow r", r"p \wedge \neg q \to r")
    assert not answers_equal(r"p \lor q", r"p \wedge q")
    assert not answers_equal(r"\mathbb{R}^3", r"\mathbb R^2")
    assert not answers_equal("", "")
    assert answers_equal("C) x > 5", "$C$\\\\\n\\noindent")


def test_every_type_has_one_function_and_answers_drawn_from_it() -> None:
    assert EQUALITY.keys() == OF_TYPES.keys() == set(get_args(Answer))


def test_drawn_answers_are_equal_as_they_were_made() -> None:
    rng = random.Random(0)
    drawn = [(name, *draw(rng)) for name, draw in KNOWN.items() for _ in range(40)]
    assert [case for case in drawn if answers_equal(case[1], case[2]) != case[3]] == []


def test_known_unit_behind_an_answer_is_no_part_of_it() -> None:
    right = (
        *(
            ("166 cm^2", "$166$", "$cm^2$"),
            ("166 cm^{2}", "$166$", "$cm^2$"),
            (r"166\ \mathrm{cm^2}", "$166$", "$cm^2$"),
        ),
        *((r"4.2\%", "4.2", "%"), ("4.2%", "4.2", "%")),
        (r"\angle B_1 = 60^\circ, \angle A = 90^\circ", r"$\angle A=90$, $\angle B_{1}=60$", r"^{\circ}"),
    )
    wrong = [(answer, gold.replace("4.2", "0.042").replace("6", "7"), unit) for answer, gold, unit in right]
    assert [case for case in right if not answers_equal(case[0], case[1], unit=case[2])] == []
    assert [case for case in wrong if answers_equal(case[0], case[1], unit=case[2])] == []


def test_tolerance_is_an_absolute_error_of_numbers() -> None:
    near = {"4.3": True, "4.1": True, "r=4.25": True, "4.31": False, "x": False}
    assert {answer: answers_equal(answer, "4.2", tolerance=0.1) for answer in near} == near
    assert not any(answers_equal(answer, "4.2") for answer in near)
    assert not answers_equal("4.2x", "4.2", tolerance=10.0)


def golds() -> list[str]:
    """All different gold answers of the data sets, in order."""
    folder = Path(os.environ.get("HACPO_DATA_DIR", ""))
    if "HACPO_DATA_DIR" not in os.environ or not (folder / "math500.jsonl").is_file():
        pytest.skip("set HACPO_DATA_DIR to a folder that holds math500.jsonl")
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for each in read_rows(path, ["answer"]):
            row = each.values
            if row.get("answer") and "completion" not in row:
                found[row["answer"]] = None
    return list(found)


def judged(each: list[str]) -> tuple[int, list[tuple[str, str, str]]]:
    """How many answers were made from these gold answers, and kind, gold and answer of those judged wrongly.

    Unscored is no mistake where the gold answer cannot be read.
    """
    made = [(kind, gold, rewrite(gold), True) for gold in each for kind, rewrite in REWRITTEN.items()]
    made += [(kind, gold, answer, False) for gold in each for kind, answer in changes(gold)]
    made = [case for case in made if case[2] != case[1]]
    with VerifierPool(num_workers=os.cpu_count() or 1, timeout_s=10, memory_mb=1024, style="plain") as pool:
        verdicts = pool.verify([case[2] for case in made], [case[1] for case in made])
    scored = [pair for pair in zip(made, verdicts, strict=True) if pair[1].reason != UNREADABLE]
    assert len(scored) > 0.99 * len(made)
    return len(made), [case[:3] for case, one in scored if one.status != ("correct" if case[3] else "wrong")]


@pytest.mark.slow
def test_rewritten_gold_answers_are_accepted_and_changed_ones_refused() -> None:
    number, mistakes = judged(golds()[::50])
    assert number > 1000
    assert mistakes == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_rewritten_gold_answers_are_accepted_and_changed_ones_refused() -> None:
    number, mistakes = judged(golds())
    print(f"{number} answers, {len(mistakes)} judged wrongly: {mistakes[:20]}")
    assert mistakes == []
