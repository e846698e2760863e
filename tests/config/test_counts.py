"""Numbers that a configuration comes to: ranks, processes, GPUs."""

import dataclasses

import pytest

from flows.planning.compose import compose
from hacpo_core.config import AgentConfig, EngineConfig, ExperimentConfig, PlacementConfig, TeamConfig, VllmConfig
from hacpo_core.config.counts import (
    num_minibatches,
    num_processes,
    occupied_gpus,
    planned_updates,
    shared_out,
    total_updates,
)


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [
        ((1.7, 4.0), 8, (2, 6)),  # quotas 2.39 and 5.61
        ((4.0, 8.2), 8, (3, 5)),  # 2.62 and 5.38
        ((4.0, 3.2), 8, (4, 4)),  # 4.44 and 3.56
        ((1.0, 1.0, 1.0), 8, (3, 3, 2)),  # equal remainders: the first ones
        ((1.0, 100.0), 8, (0, 8)),  # 0.08 and 7.92
    ],
)
def test_counts_are_shared_out_by_largest_remainder(
    weights: tuple[float, ...], total: int, expected: tuple[int, ...]
) -> None:
    shares = {f"set{i}": weight for i, weight in enumerate(weights)}
    assert tuple(shared_out(shares, total).values()) == expected


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
    pair = TeamConfig("pair", {"a": AgentConfig(path="a"), "b": AgentConfig(path="b", num_ranks=3)})
    engine = EngineConfig(device=device, sampler="vllm", vllm=VllmConfig("own", tensor_parallel_size=2))
    config = dataclasses.replace(ExperimentConfig(), pair=pair, engine=engine, placement=placement)
    assert (num_processes(config), occupied_gpus(config)) == (processes, gpus * processes)


def test_iterations_multiply_the_planned_updates() -> None:
    once, twice = (compose("tiny", "hacpo", overrides=words) for words in ((), ("method.build.num_iterations=3",)))
    assert num_minibatches(twice) == 3 * num_minibatches(once)
    assert total_updates(twice) == 3 * total_updates(once)
    assert planned_updates(twice, 2) == range(num_minibatches(twice), 2 * num_minibatches(twice))
