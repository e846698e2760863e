"""The sums of host memory, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.planning.compose import compose
from flows.planning.host_memory import host_gib
from tests.flows.planning.test_memory import BILLION, config_of


@pytest.mark.slow
def test_host_memory_is_what_is_offloaded_and_what_is_read_while_an_agent_is_loaded() -> None:
    shapes = dict.fromkeys(config_of().pair.agents, BILLION)
    assert host_gib(config_of(), shapes) == 40.0, "20 bytes a weight of each of two agents"
    adapters = config_of("engine.learner=torch", "engine.grad_dtype=same", "engine.lora.rank=1")
    assert host_gib(adapters, shapes) == 2.0, "a model, or the weights of a checkpoint with its adapters merged"
    eight = compose(
        "qwen3-1.7b-base+qwen3-4b-base", "hacpo", hardware="eight_gpus", overrides=["placement.num_ranks=4"]
    )
    assert host_gib(eight, shapes) == 8.0, "four ranks read the model at once, in bfloat16"
    alone = replace(eight, pair=replace(eight.pair, agents={k: eight.pair.agents[k] for k in ["qwen3-4b-base"]}))
    one_rank = replace(alone, placement=replace(alone.placement, num_ranks=1))
    assert host_gib(one_rank, {"qwen3-4b-base": BILLION}) == 2.0, "the copy for vLLM"
    assert host_gib(eight, {}) == 0.0
