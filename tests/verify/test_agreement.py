"""Agreement with the graders of 3,116 real completions: HACPO_DATA_DIR names the folder of model_outputs.jsonl."""

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from hacpo_core.records import Verdict
from hacpo_core.verify.pool import VerifierPool

pytestmark = pytest.mark.system

FLOOR = 0.918
"""Of scored rows; measured 0.919. The rest is label noise (about 30 right answers labelled wrong) and, in MathOdyssey,
gold answers that are an option letter where the response gives the option's content."""

FLOOR_WITHOUT_ODYSSEY = 0.975
"""Measured 0.982."""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    path = Path(os.environ.get("HACPO_DATA_DIR", "")) / "model_outputs.jsonl"
    if "HACPO_DATA_DIR" not in os.environ or not path.is_file():
        pytest.skip("set HACPO_DATA_DIR to a folder that holds model_outputs.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def verdicts(rows: list[dict[str, Any]]) -> list[Verdict]:
    with VerifierPool(num_workers=1, timeout_s=5.0, memory_mb=1024, style="auto") as pool:
        return pool.verify([row["completion"] for row in rows], [row["answer"] for row in rows])


def test_verdicts_agree_with_the_labels_of_real_completions(
    rows: list[dict[str, Any]], verdicts: list[Verdict]
) -> None:
    tables: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row, verdict in zip(rows, verdicts, strict=True):
        outcome = verdict.status if verdict.status == "unscored" else f"{row['label']} called {verdict.status}"
        source = row["source"].partition("@")[0] + " " + row["dataset"]
        tables[source][outcome] += 1
    for source, table in sorted(tables.items()):
        print(f"{source:60} {_agreement(table):.3f} of {table.total():5} {dict(table)}")
    total = sum(tables.values(), Counter())
    print(f"{'all':60} {_agreement(total):.3f} of {total.total():5} {dict(total)}")

    assert total.total() == 3116
    assert _agreement(total) >= FLOOR
    assert _agreement(sum((t for s, t in tables.items() if "odyssey" not in s), Counter())) >= FLOOR_WITHOUT_ODYSSEY
    assert total["unscored"] <= 30  # the gold answer of 19 is a sentence, several statements or malformed


@pytest.mark.slow
def test_reward_by_letters_is_stricter_than_algebra(rows: list[dict[str, Any]], verdicts: list[Verdict]) -> None:
    boxed, by_algebra_alone = zip(
        *((row, one) for row, one in zip(rows, verdicts, strict=True) if "\\boxed" in row["completion"]), strict=True
    )
    with VerifierPool(num_workers=1, timeout_s=5.0, memory_mb=1024, style="boxed", equality="normalised") as pool:
        by_letters = pool.verify([row["completion"] for row in boxed], [row["answer"] for row in boxed])
    both = Counter((one.status, other.status) for one, other in zip(by_letters, by_algebra_alone, strict=True))
    by_label = Counter((one.status, row["label"]) for one, row in zip(by_letters, boxed, strict=True))
    assert (by_label["correct", False], by_label["wrong", True], both["correct", "wrong"]) == (1, 74, 0)


def _agreement(table: Counter[str]) -> float:
    return (table["True called correct"] + table["False called wrong"]) / (table.total() - table["unscored"])
