"""Verified responses per second on real completions: the pool of killable workers against plain loops.

    math-verify     parse(answer) and verify, without time limits, so an answer could hang it
    unguarded       our extraction and comparison without worker processes; the difference is the cost of isolation
    2 loops         math-verify in two processes that take rows in turn: the gain from two cores without our pool

The rows come from HACPO_DATA_DIR/model_outputs.jsonl (3,116 completions), different ones in each round; verdicts are
not cached.

Usage: python -m benchmarks.verification [--rows 400] [--rounds 6]; writes benchmarks/results/verification.json.
"""

import argparse
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import in_turn, median_ratio, write_result
from hacpo_core.verify.answers import extract_answer
from hacpo_core.verify.pool import Pair, VerifierPool, decided_without_algebra

MEMORY_MB = 2048
Block = Sequence[dict[str, Any]]
Way = Callable[[Block], object]


def bare(block: Block) -> None:
    """A loop of math-verify."""
    from math_verify import parse, verify

    for row in block:
        gold, answer = (parse(text, parsing_timeout=None) for text in (f"${row['answer']}$", row["completion"]))
        verify(gold, answer, timeout_seconds=None)


def unguarded(block: Block) -> None:
    """A loop of our own comparison."""
    from hacpo_core.verify.equality import answers_equal

    for row in block:
        answer = extract_answer(row["completion"], style="auto")
        pair = None if answer is None else Pair(candidate=answer, gold=row["answer"])
        if pair is not None and decided_without_algebra(pair) is None:
            with suppress(Exception):  # sympy's errors, which a worker would count
                answers_equal(pair.candidate, pair.gold)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400, help="per round")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    path = Path(os.environ.get("HACPO_DATA_DIR", "")) / "model_outputs.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path} does not exist; set HACPO_DATA_DIR to a folder that holds model_outputs.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in random.Random(0).sample(lines, arguments.rows * (arguments.rounds + 1))]
    blocks = [rows[start : start + arguments.rows] for start in range(0, len(rows), arguments.rows)]
    settings: dict[str, Any] = {"timeout_s": 5.0, "memory_mb": MEMORY_MB, "style": "auto", "cache": False}
    spawn = multiprocessing.get_context("spawn")
    # The parser caches what it has parsed, so every implementation has its own process, and every round other rows.
    with ExitStack() as stack:

        def loop(way: Way) -> Callable[[], object]:
            left, process = iter(blocks), stack.enter_context(spawn.Pool(1))
            return lambda: process.apply(way, (next(left),))

        def loops() -> Callable[[], object]:
            left, processes = iter(blocks), stack.enter_context(spawn.Pool(2))

            return lambda: processes.map(bare, [[row] for row in next(left)], chunksize=1)

        def pooled(num_workers: int) -> Callable[[], object]:
            left, pool = iter(blocks), stack.enter_context(VerifierPool(num_workers=num_workers, **settings))

            def run() -> None:
                block = next(left)
                pool.verify([row["completion"] for row in block], [row["answer"] for row in block])

            return run

        ways = {
            "math-verify": loop(bare),
            "unguarded": loop(unguarded),
            "1 worker": pooled(1),
            "2 loops": loops(),
            "2 workers": pooled(2),
        }
        seconds = in_turn(ways, rounds=arguments.rounds)
    result = {
        "rows": arguments.rows,
        "answers_per_s": {name: arguments.rows * len(times) / sum(times) for name, times in seconds.items()},
        "round_s": seconds,
        "one_worker_over_math_verify": median_ratio(seconds["math-verify"], seconds["1 worker"]),
        "one_worker_over_unguarded": median_ratio(seconds["unguarded"], seconds["1 worker"]),
        "two_loops_over_one": median_ratio(seconds["math-verify"], seconds["2 loops"]),
        "two_workers_over_one": median_ratio(seconds["1 worker"], seconds["2 workers"]),
    }
    write_result("verification", result, ["math-verify", "sympy"])


if __name__ == "__main__":
    main()
