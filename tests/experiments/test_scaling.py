"""The hardware files against the planner's own sums."""

from __future__ import annotations

import pytest

from experiments.scaling import PAIRS, memory_table


@pytest.mark.parametrize("hardware", ["one_gpu", "one_gpu_vllm", "eight_gpus", "two_nodes"])
def test_every_pair_of_the_paper_fits_with_responses_as_long_as_allowed(hardware: str) -> None:
    lines = memory_table(hardware).splitlines()
    assert len(lines) == 2 + 2 * len(PAIRS)
    assert "(!)" not in "".join(lines)
