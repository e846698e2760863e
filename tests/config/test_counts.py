"""Numbers that a configuration comes to: ranks, processes, GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from flows.planning.compose import compose
from hacpo_core.config import AgentConfig, EngineConfig, ExperimentConfig, PairConfig, PlacementConfig, VllmConfig
from hacpo_core.config.counts import (
    num_minibatches,
    num_processes,
    occupied_gpus,
    planned_updates,
    shared_out,
    total_updates,
)


@pytest.mark.parametrize(
    ("billions", "total", "expected"),
    [
        ((1.7, 4.0), 8, (2, 6)),  # quotas 2.39 and 5.61
        ((4.0, 8.2), 8, (3, 5)),  # 2.62 and 5.38
        ((4.0, 3.2), 8, (4, 4)),  # 4.44 and 3.56
        ((4.0, 4.0), 8, (4, 4)),
        ((0.2, 0.1), 3, (2, 1)),
        ((1.0, 1.0, 1.0), 8, (3, 3, 2)),  # equal remainders: the first agents
        ((1.0, 100.0), 8, (1, 7)),  # 0.08 and 7.92: at least one
        ((1.0, 9.0, 90.0), 4, (1, 1, 2)),  # 0.04, 0.36 and 3.6, of which 3 is the most above its quota
    ],
)
def test_ranks_are_shared_out_by_largest_remainder(
    billions: tuple[float, ...], total: int, expected: tuple[int, ...]
) -> None:
    agents = [f"agent{i}" for i in range(len(billions))]
    sizes = {k: int(size * 1e9) for k, size in zip(agents, billions, strict=True)}
    assert tuple(shared_out(sizes, total, least=1).values()) == expected


@pytest.mark.parametrize(
    ("placement", "processes"),
    [
        (PlacementConfig(num_ranks=4), 1),  # local: no ranks, one process
        (PlacementConfig(kind="ray", num_ranks=4), 7),
        (PlacementConfig(kind="ray", num_ranks=4, colocated=True), 4),
    ],
)
@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 2)])
def test_gpus_are_held_for_all_agents_that_do_not_take_turns(
    placement: PlacementConfig, processes: int, device: str, gpus: int
) -> None:
    pair = PairConfig("pair", {"a": AgentConfig(path="a"), "b": AgentConfig(path="b", num_ranks=3)})
    engine = EngineConfig(device=device, sampler="vllm", vllm=VllmConfig("own", tensor_parallel_size=2))
    config = dataclasses.replace(ExperimentConfig(), pair=pair, engine=engine, placement=placement)
    assert (num_processes(config), occupied_gpus(config)) == (processes, gpus * processes)


def test_iterations_multiply_the_planned_updates() -> None:
    once, twice = (compose("tiny", "hacpo", overrides=words) for words in ((), ("method.build.num_iterations=3",)))
    assert num_minibatches(twice) == 3 * num_minibatches(once)
    assert total_updates(twice) == 3 * total_updates(once)
    assert planned_updates(twice, 2) == range(num_minibatches(twice), 2 * num_minibatches(twice))
