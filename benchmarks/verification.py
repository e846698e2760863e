"""Verified answers per second on real completions: our pool of killable workers against bare loops in one process.

    math-verify     parse(answer) and verify, its own limits off: nothing guards against an answer that never ends
    unguarded       our extraction and comparison without processes: what isolation costs is the difference to this

The rows come from HACPO_DATA_DIR/model_outputs.jsonl (3,116 completions). No decision is cached.

Usage: python -m benchmarks.verification [--rows 1000] [--rounds 3]; writes benchmarks/results/verification.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from pathlib import Path

from benchmarks.measure import in_turn, median_ratio, write_result
from hacpo_core.verify.answers import MAX_ANSWER_CHARS, extract_answer, normalise
from hacpo_core.verify.pool import VerifierPool

MEMORY_MB = 2048


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    path = Path(os.environ.get("HACPO_DATA_DIR", "")) / "model_outputs.jsonl"
    if not path.is_file():
        raise SystemExit("set HACPO_DATA_DIR to a folder that holds model_outputs.jsonl")
    from math_verify import parse, verify

    from hacpo_core.verify.equality import answers_equal

    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in random.Random(0).sample(lines, asked.rows)]
    texts, golds = [row["completion"] for row in rows], [row["answer"] for row in rows]

    def bare() -> None:
        for text, gold in zip(texts, golds, strict=True):
            verify(parse(f"${gold}$", parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None)

    def unguarded() -> None:
        for text, gold in zip(texts, golds, strict=True):
            answer = extract_answer(text, style="auto")
            if answer is not None and normalise(answer) != normalise(gold) and len(answer) <= MAX_ANSWER_CHARS:
                try:
                    answers_equal(answer, gold)
                except Exception:  # noqa: BLE001  of sympy; a worker counts it
                    continue

    pools = {
        f"{number} worker{'s' * (number > 1)}": VerifierPool(
            num_workers=number, timeout_s=5.0, memory_mb=MEMORY_MB, style="auto", cache=False
        )
        for number in (1, 2)
    }
    ways = {"math-verify": bare, "unguarded": unguarded}
    ways |= {name: lambda pool=pool: pool.verify(texts, golds) for name, pool in pools.items()}  # type: ignore[misc]
    seconds = in_turn(ways, rounds=asked.rounds)
    for pool in pools.values():
        pool.close()
    result = {
        "rows": asked.rows,
        "answers_per_s": {name: asked.rows / statistics.median(found) for name, found in seconds.items()},
        "one_worker_over_math_verify": median_ratio(seconds["math-verify"], seconds["1 worker"]),
        "one_worker_over_unguarded": median_ratio(seconds["unguarded"], seconds["1 worker"]),
        "two_workers_over_one": median_ratio(seconds["1 worker"], seconds["2 workers"]),
    }
    write_result("verification", result, ["math-verify", "sympy"])


if __name__ == "__main__":
    main()
