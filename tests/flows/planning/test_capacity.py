"""vLLM's share of a GPU, by hand, and the plans that the sums refuse."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.planning import capacity, memory
from flows.planning.capacity import check_fits, max_memory_share, with_memory_plan, with_ranks
from flows.planning.compose import compose
from flows.planning.memory import memory_of_agents, peak_gib, published_shapes, sizes_of
from flows.planning.plans import plan
from hacpo_core.config import ExperimentConfig
from hacpo_core.errors import CapacityError, ConfigError
from tests.flows.planning.test_memory import BILLION, config_of

LARGEST = "qwen3-4b-base+qwen3-8b-base"
AUTO = "engine.vllm.memory_share=auto"


def share_of(*words: str, gpu_gib: float = 80.0) -> float:
    config = config_of("engine.learner=torch", *words, hardware="one_gpu_vllm")
    return max_memory_share(config, dict.fromkeys(config.pair.agents, BILLION), gpu_gib=gpu_gib)


def test_share_is_what_two_agents_of_one_gpu_leave_by_hand() -> None:
    sampling = 2.0 + 12.0 + 1.5 + 0.5  # weights, optimizer, left of an update, context of the engine
    resting = sampling + 1.5  # and the engine that sleeps
    assert (80 - 2 - 0.5 - sampling - resting) / 80 == 0.55
    assert share_of() == 0.55


def test_share_holds_at_least_the_weights_and_one_response_and_never_the_whole_gpu() -> None:
    cache = 9220 * 2 * 10 * 50 * 2 / 2**30
    assert share_of(gpu_gib=24.0) == 0.09, f"{(2 + cache) / 24}, though nothing is left: the plan is then refused"
    assert share_of(gpu_gib=1000.0) == 0.9


def test_largest_pair_of_the_paper_ran_out_of_memory_with_the_share_that_the_file_had() -> None:
    config = compose(LARGEST, "hacpo", hardware="one_gpu_vllm", overrides=["engine.vllm.memory_share=0.64"])
    shapes = published_shapes(config)
    # Weights 7.49 and 15.26, buffers .72 and 1.16, twice 1.5, three contexts of .5, 1.5 asleep, and .64 x 79 awake.
    assert peak_gib(config, shapes, gpu_gib=79, is_least=True) == pytest.approx(30.63 + 50.56, abs=0.02)
    message = (
        r"at least 81\.2 GiB .* has 79\.0; vLLM takes 0\.64 of it; set engine\.vllm\.memory_share=auto.* 0\.58 here"
    )
    with pytest.raises(CapacityError, match=message):
        check_fits(config, shapes)
    planned = with_memory_plan(compose(LARGEST, "hacpo", hardware="one_gpu_vllm"), shapes)
    assert pytest.approx(0.5870, abs=1e-4) == (79 - 2 - 30.63) / 79
    assert planned.engine.vllm.memory_share == 0.58
    check_fits(planned, shapes)


def test_activations_are_recomputed_of_as_few_layers_as_the_memory_demands() -> None:
    def planned(*words: str) -> ExperimentConfig:
        config = compose(LARGEST, "hacpo", hardware="one_gpu", overrides=["engine.learner=torch", *words])
        return with_memory_plan(config, dict.fromkeys(config.pair.agents, BILLION))

    def decided(*words: str) -> tuple[object, set[int | None]]:
        config = planned(*words)
        layers = {agent.recomputed_layers for agent in config.pair.agents.values()}
        return config.engine.gradient_checkpointing, layers

    # Two learners of 20 and 14 GiB, twice 1.5 after updates, .5 for the context; 3 chunks of 1 GiB, and per token
    # 10 layers of 16 x 100 + 8 x 300 + (6 + 4 x 2) x 150 bytes.
    layer, its_input = (16384 * num_bytes / 2**30 for num_bytes in (16 * 100 + 8 * 300 + 14 * 150, 2 * 100))
    activations = 10 * layer
    needed = 20 + 14 + 2 * 1.5 + 0.5 + 3.0 + activations
    assert needed == pytest.approx(41.431, abs=1e-3)
    assert decided(f"engine.gpu_memory_gb={needed + 2.01}") == (False, {0}), "2 GiB are left for what has no sum"
    assert decided(f"engine.gpu_memory_gb={needed + 1.99}") == (True, {1})
    saved = needed - 5 * layer + 5 * its_input
    assert decided(f"engine.gpu_memory_gb={saved + 2.001}") == (True, {5})
    assert decided(f"engine.gpu_memory_gb={saved + 1.999}") == (True, {6})
    assert decided("engine.gpu_memory_gb=34") == (True, {10}), "they do not fit in any case"
    assert decided("engine.gpu_memory_gb=200", "engine.gradient_checkpointing=true") == (True, {None}), "the user says"
    own = planned(f"engine.gpu_memory_gb={needed + 1.99}", "pair.agents.qwen3-8b-base.recomputed_layers=0")
    assert [agent.recomputed_layers for agent in own.pair.agents.values()] == [1, 0]


def test_each_agent_of_a_pair_has_its_own_recomputed_layers() -> None:
    overrides = ["placement.num_ranks=4"]
    config = compose("qwen3-4b-base+llama3.2-3b-instruct", "hacpo", hardware="eight_gpus", overrides=overrides)
    shapes = published_shapes(config)
    planned = with_memory_plan(config, shapes)
    of_4b, of_3b = (agent.recomputed_layers for agent in planned.pair.agents.values())
    assert (of_4b, of_3b) == (11, 0), "of 36 and 28"
    memory = memory_of_agents(planned, shapes, gpu_gib=79)
    gib = [agent.updating for agent in memory.values()]
    assert 77 - 1.5 < gib[0] <= 77, "a layer takes 1.5 GiB"
    assert gib[1] <= 77


def test_plan_above_the_margin_is_flagged(caplog: pytest.LogCaptureFixture) -> None:
    words = ["engine.deepspeed.stage=1", "placement.num_ranks=auto"]
    config = compose(LARGEST, "hacpo", hardware="eight_gpus", overrides=words)
    shapes = published_shapes(config)
    config = with_memory_plan(with_ranks(config, sizes_of(shapes)), shapes)
    assert config.pair.agents["qwen3-8b-base"].recomputed_layers == 36, "of 36: nothing is left to recompute"
    with pytest.raises(CapacityError, match="GiB of GPU memory, but the GPU has 79"):
        check_fits(config, shapes)
    for num_tokens, is_flagged in ((8192, False), (32768, True)):
        caplog.clear()
        overrides = [f"engine.micro_batch_tokens={num_tokens}"]
        config = compose(LARGEST, "hacpo", hardware="eight_gpus", overrides=overrides)
        config = with_memory_plan(with_ranks(config, sizes_of(shapes)), shapes)
        check_fits(config, shapes)
        assert ("may run out of memory: full passes need up to" in caplog.text) is is_flagged


def test_plan_holds_a_number_in_place_of_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "min_gpu_gib", lambda: None)
    words = [AUTO, f"runtime.runs_dir={tmp_path}"]
    planned = plan(compose("tiny", "hacpo", hardware="one_gpu_vllm", overrides=words))
    assert planned.config.engine.vllm.memory_share == 0.89, "(79 - 2 - 0.5 - 2 - 3.5) / 79, weights of no size"
    with pytest.raises(ConfigError, match="memory_share: got auto, but no GPU is here .*; set engine.gpu_memory_gb to"):
        plan(compose("tiny", "hacpo", hardware="one_gpu_vllm", overrides=[*words, "engine.gpu_memory_gb=null"]))


def test_plan_that_a_machine_cannot_hold_is_refused_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("qwen3-4b-base+qwen3-8b-base", "hacpo", hardware="one_gpu")
    shapes = published_shapes(config)
    check_fits(config, shapes)  # nobody knows the machine that the plan is for
    monkeypatch.setattr(capacity, "min_gpu_gib", lambda: 79.0)
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: SimpleNamespace(total=200 * 2**30))
    with pytest.raises(CapacityError, match=r"need at least 227 GiB of host memory, but the machine has 200; offload"):
        check_fits(config, shapes)


def test_plan_that_cannot_fit_is_refused_with_the_figure() -> None:
    words = ["engine.learner=torch", "engine.gpu_memory_gb=79"]
    shapes = published_shapes(config_of(*words))
    with pytest.raises(
        CapacityError, match=r"1\.7 and 4\.0 billion parameters need at least 107\.\d GiB of GPU memory, but the GPU"
    ):
        check_fits(config_of(*words), shapes)
    check_fits(config_of(), shapes)
    check_fits(compose("tiny", "hacpo"), {"qwen-tiny": BILLION})  # the CPU's memory is nobody's business here
