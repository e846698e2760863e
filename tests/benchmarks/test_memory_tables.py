"""The hardware files against the planner's own sums."""

from __future__ import annotations

import pytest

from benchmarks.memory_tables import MEMORY_BEGIN, MEMORY_END, PAGE, PAIRS, memory_table, memory_tables


@pytest.mark.parametrize("hardware", ["one_gpu", "one_gpu_vllm", "eight_gpus", "two_nodes"])
def test_every_pair_of_the_paper_fits_with_responses_as_long_as_allowed(hardware: str) -> None:
    lines = memory_table(hardware).splitlines()
    assert len(lines) == 2 + 2 * len(PAIRS)
    assert "(!)" not in "".join(lines)


@pytest.mark.slow
def test_page_holds_the_tables_that_this_module_makes() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(MEMORY_BEGIN)[2].partition(MEMORY_END)[0].strip()
    assert written == memory_tables(), "python -m benchmarks.memory_tables writes the page anew"
