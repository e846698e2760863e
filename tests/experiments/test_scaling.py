"""The hardware files against the planner's own sums."""

from __future__ import annotations

import pytest

from experiments.scaling import PAIRS, SPARE_GIB, largest_memory_share, memory_table
from flows.planning.compose import compose


@pytest.mark.parametrize("hardware", ["one_gpu_vllm", "eight_gpus", "two_nodes"])
def test_vllm_gets_what_the_sums_leave_beside_the_largest_pair(hardware: str) -> None:
    engine = compose(PAIRS[0], "hacpo", hardware=hardware).engine
    assert engine.vllm.memory_share == largest_memory_share(hardware)


def test_largest_share_is_the_one_that_is_reckoned_by_hand() -> None:
    # The 8 B agent samples while the 4 B agent rests with its weights on the GPU: 79 - 5 - 15.26 - 7.49 of 79 GiB.
    parameters = {"8b": 8.1907e9, "4b": 4.0225e9}
    left = 79 - SPARE_GIB - 2 * sum(parameters.values()) / 2**30
    assert largest_memory_share("one_gpu_vllm") == int(100 * left / 79) / 100 == 0.64


@pytest.mark.parametrize("hardware", ["one_gpu", "one_gpu_vllm", "eight_gpus", "two_nodes"])
def test_every_pair_of_the_paper_fits_with_responses_as_long_as_allowed(hardware: str) -> None:
    lines = memory_table(hardware).splitlines()
    assert len(lines) == 2 + 2 * len(PAIRS)
    assert "(!)" not in "".join(lines)
