"""Verdicts on pairs that readers brought up, and on gold answers of real data, rewritten and changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hacpo_core.data.rows import read_rows
from hacpo_core.verify.answers import UNREADABLE
from hacpo_core.verify.equality import answers_equal, is_readable
from hacpo_core.verify.pool import VerifierPool
from tests.verify.rewritten import REWRITTEN, changes

PAIRS = Path(__file__).parent / "pairs"
"""files with a gold answer and an answer in each line, by verdict"""


def pairs(verdict: str) -> list[tuple[str, str]]:
    """Gold answers and answers of a file of PAIRS, `right` or `wrong`."""
    lines = (PAIRS / f"{verdict}.txt").read_text(encoding="utf-8").splitlines()
    return [(gold, answer) for gold, _, answer in (line.partition(" <= ") for line in lines)]


@pytest.mark.parametrize(("gold", "answer"), pairs("right"))
def test_right_answer_is_accepted(gold: str, answer: str) -> None:
    assert answers_equal(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), pairs("wrong"))
def test_wrong_answer_is_refused(gold: str, answer: str) -> None:
    assert not answers_equal(answer, gold)


@pytest.mark.parametrize(
    "gold", [*(gold for gold, _ in (*pairs("right"), *pairs("wrong"))), r"\begin{pmatrix}1\\2\end{pmatrix}"]
)
def test_such_gold_answers_can_be_read(gold: str) -> None:
    assert is_readable(gold)


@pytest.mark.parametrize("gold", [r"\frac{1}{2", "There is no such number at all", r"\frac{1}{0}", "12 5"])
def test_gold_answer_that_cannot_be_read_leaves_other_spellings_unscored(gold: str) -> None:
    assert not is_readable(gold)
    with VerifierPool(num_workers=1, timeout_s=20, memory_mb=1024, style="plain") as pool:
        same, other = pool.verify([gold, "0.5"], [gold, gold])
        assert pool.unreadable([gold, "3", r"\frac{1}{2}", gold]) == [gold]
    assert (same.status, other.status, other.reason) == ("correct", "unscored", UNREADABLE)


def golds() -> list[str]:
    """All different gold answers of the data sets, in order."""
    folder = Path(os.environ.get("HACPO_DATA_DIR", ""))
    if "HACPO_DATA_DIR" not in os.environ or not (folder / "math500.jsonl").is_file():
        pytest.skip("set HACPO_DATA_DIR to a folder that holds math500.jsonl")
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for each in read_rows(path):
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
