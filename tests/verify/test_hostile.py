"""Hostile answers end in a verdict, and no answer whose truth is known is judged wrongly."""

import os
from collections import Counter, defaultdict

import pytest

from hacpo_core.verify.pool import VerifierPool
from tests.verify.hostile import HOSTILE, cases
from tests.verify.known import KNOWN


def judge(number: int, *, seed: int) -> None:
    """Prints verdicts by kind; fails if one contradicts what is known. A killed comparison is unscored, not wrong."""
    made, mistakes = cases(number, seed=seed), []
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with VerifierPool(num_workers=os.cpu_count() or 1, timeout_s=2.0, memory_mb=1024, style="auto") as pool:
        verdicts = pool.verify([case.text for case in made], [case.gold for case in made])
        assert pool.verify([r"\boxed{\frac{1}{2}}"], ["0.5"])[0].status == "correct"
    for case, verdict in zip(made, verdicts, strict=True):
        counts[case.kind][f"{verdict.status} {verdict.reason}".strip()] += 1
        allowed = {None: {"correct", "wrong"}, True: {"correct"}, False: {"wrong"}}[case.is_equal] | {"unscored"}
        if verdict.status not in allowed:
            mistakes.append((case, verdict))
    for kind, found in counts.items():
        print(f"{kind:30} {dict(found)}")
    total = sum(counts.values(), Counter())
    print(f"{number} answers, seed {seed}: {dict(total)}; slowest {max(verdict.seconds for verdict in verdicts):.2f} s")
    assert not mistakes
    assert counts.keys() == {*HOSTILE, *KNOWN}


@pytest.mark.system
def test_hundred_hostile_answers_get_a_verdict_and_no_wrong_reward() -> None:
    judge(100, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_hostile_answers_get_a_verdict_and_no_wrong_reward() -> None:
    judge(10_000, seed=1)
