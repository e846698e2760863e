"""The sums of device memory: against what autograd really saves, and by hand."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from flows.planning import memory
from flows.planning.compose import compose
from flows.planning.memory import ModelShape, _activation_bytes, agent_memory, gpu_gib, peak_gib
from hacpo_core.columns import TokenRows
from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.models.loading import recompute_activations
from hacpo_core.engines.passes.attention import let_rows_share
from hacpo_core.engines.passes.layouts import ForwardPass, forward_passes
from hacpo_core.engines.passes.scoring import ScoringHead

WIDTHS = {"hidden_size": 100, "query_width": 100, "kv_width": 50, "intermediate_size": 300}
BILLION = ModelShape(num_parameters=2**30, num_layers=10, vocab_size=0, **WIDTHS)


def config_of(*words: str, hardware: str = "one_gpu") -> ExperimentConfig:
    return compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", hardware=hardware, overrides=list(words))


def saved_bytes(
    kind: str, *, layers: int, dtype: torch.dtype, recomputed: int = 0, forward: ForwardPass | None = None
) -> int:
    """Bytes that autograd keeps of a forward pass of 256 tokens, or of the given rows; weights left out."""
    shape = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = AutoConfig.for_model(kind, num_hidden_layers=layers, intermediate_size=768, vocab_size=64, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    if recomputed:
        recompute_activations(model, recomputed)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if forward is None:
            model.base_model(input_ids=torch.arange(256)[None] % 64, use_cache=False)
        else:
            assert let_rows_share(model)
            ScoringHead(model, is_linear=True)._hidden(forward)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("kept", [0, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_activations_are_what_autograd_saves_per_layer(kind: str, dtype: torch.dtype, kept: int) -> None:
    num_layers = ((1, 1 - min(kept, 1)), (3, 3 - kept))  # with how many of them are recomputed
    few, many = (saved_bytes(kind, layers=n, dtype=dtype, recomputed=recomputed) for n, recomputed in num_layers)
    per_layer = (many - few) / 2 / 256
    shape = replace(BILLION, hidden_size=256, query_width=256, kv_width=128, intermediate_size=768)
    width = dtype.itemsize
    reckoned = [_activation_bytes(replace(shape, num_layers=n), width, recomputed) for n, recomputed in num_layers]
    expected = (reckoned[1] - reckoned[0]) / 2
    # Llama has no norms of queries and keys, the sums are Qwen3's.
    assert per_layer == pytest.approx(expected, rel=0.01 if kind == "qwen3" or not kept else 0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_that_share_prompts_keep_queries_keys_values_and_results_of_each_place(dtype: torch.dtype) -> None:
    prompt, responses = [1] * 120, [[2] * length for length in (100, 90, 40)]
    (forward,) = forward_passes(TokenRows.of([prompt] * 3, responses), layout="shared_prompts", max_tokens=1000)
    assert forward.places is not None
    num_tokens, num_places = forward.input_BT.numel(), sum(rows * length for rows, length in forward.places.blocks)
    few, many = (saved_bytes("qwen3", layers=n, dtype=dtype, forward=forward) for n in (1, 3))
    shape = replace(BILLION, hidden_size=256, query_width=256, kv_width=128, intermediate_size=768)
    expected = [
        _activation_bytes(replace(shape, num_layers=n), dtype.itemsize, 0, num_places / num_tokens) for n in (1, 3)
    ]
    assert (many - few) / num_tokens == pytest.approx(expected[1] - expected[0], rel=0.05)


def test_torch_learner_in_bf16_holds_twenty_bytes_per_weight() -> None:
    found = agent_memory(config_of("engine.learner=torch"), BILLION, ranks=1, gpu_gib=79)
    assert (found.weights, found.gradients, found.optimizer) == (2.0, 6.0, 12.0)
    cache = (1024 + 8196) * 2 * 10 * 50 * 2 * 32 / 2**30
    assert found.sampler == pytest.approx(cache)
    tokens, logits = 16384, 3 * 1024 * 2**20
    layers = 10 * 2 * 100 + 16 * 100 + 8 * 300 + (6 + 4 * 2) * 150  # two places for attention
    assert found.activations == pytest.approx((tokens * layers + logits) / 2**30)
    assert found.always == 1.5, "what stays after an update; the context of the one process is counted once"
    assert found.updating == pytest.approx(20.0 + found.activations + 1.5)


@pytest.mark.parametrize(("stage", "expected"), [(1, (2.0, 0.0, 7.0)), (2, (2.0, 2.5, 3.0))])
def test_each_stage_divides_one_thing_more_among_four_ranks(stage: int, expected: tuple[float, float, float]) -> None:
    words = [f"engine.deepspeed.stage={stage}", "engine.deepspeed.offload_optimizer=false"]
    found = agent_memory(config_of(*words), BILLION, ranks=4, gpu_gib=79)
    assert (found.weights, found.gradients, found.optimizer) == expected


def test_sum_of_gradients_takes_four_bytes_a_weight() -> None:
    one = agent_memory(config_of(), BILLION, ranks=1, gpu_gib=79)
    assert one.gradients == 4.0, "stage 1, the step's copies in host memory"


@pytest.mark.parametrize(("stage", "width"), [(1, 4), (2, 2)])
def test_several_ranks_hold_a_bucket_its_pending_gradients_and_buffers_of_nccl(stage: int, width: int) -> None:
    config = config_of(f"engine.deepspeed.stage={stage}", "engine.deepspeed.offload_optimizer=false")
    alone, together = (agent_memory(config, BILLION, ranks=ranks, gpu_gib=79) for ranks in (1, 4))
    assert together.activations - alone.activations == pytest.approx(2 * width * 500_000_000 / 2**30)
    assert together.always - alone.always == 0.5
    graphs, eager = (config_of(f"engine.vllm.enforce_eager={is_eager}", hardware="one_gpu_vllm") for is_eager in "01")
    asleep = [agent_memory(config, BILLION, ranks=1, gpu_gib=79).asleep for config in (graphs, eager)]
    assert asleep == [1.5, 0.5], "CUDA graphs stay"


@pytest.mark.parametrize("size", [1, 4])
def test_vllm_divides_weights_and_cache_among_its_ranks(size: int) -> None:
    config = config_of(f"engine.vllm.tensor_parallel_size={size}", hardware="one_gpu_vllm")
    cache = (1024 + 8196) * 2 * 10 * 50 * 2 / 2**30
    assert agent_memory(config, BILLION, ranks=1, gpu_gib=79, is_least=True).sampler == (2.0 + cache) / size
    fixed = replace(config, engine=replace(config.engine, vllm=replace(config.engine.vllm, memory_share=0.5)))
    assert agent_memory(fixed, BILLION, ranks=1, gpu_gib=80, is_least=True).sampler == 40.0, "vLLM takes its share"
    cached = replace(config, engine=replace(config.engine, vllm=replace(config.engine.vllm, kv_cache_gb=3.0)))
    assert agent_memory(cached, BILLION, ranks=1, gpu_gib=79).sampler == 2.0 / size + 3.0


def test_adapters_have_the_only_gradients_and_optimizer() -> None:
    words = ["engine.learner=torch", "engine.lora.rank=8"]
    found = agent_memory(config_of(*words), BILLION, ranks=1, gpu_gib=79)
    trained = 8 * 10 * (4 * (100 + 100) - 2 * 50 + 3 * 400)  # q, o: d + d; k, v: d + d / 2; three of d + f
    assert found.optimizer == pytest.approx(12 * trained / 2**30)
    assert found.weights == 2.0


@pytest.mark.slow
def test_agents_of_one_gpu_add_up_and_those_of_ray_do_not() -> None:
    words = ["engine.learner=torch", "rollout.batch_size=1"]
    shapes = dict.fromkeys(config_of().pair.agents, BILLION)
    alone = peak_gib(config_of(*words), {"qwen3-4b-base": BILLION}, gpu_gib=79, is_least=False)
    together = peak_gib(config_of(*words), shapes, gpu_gib=79, is_least=False)
    assert together == pytest.approx(alone + 15.5)  # the other's weights and optimizer, and what stays of its update
    apart = peak_gib(config_of(*words, "placement.kind=ray"), shapes, gpu_gib=79, is_least=False)
    assert apart == pytest.approx(alone)


def always(*words: str, hardware: str = "one_gpu", shape: ModelShape = BILLION) -> float:
    return agent_memory(config_of(*words, hardware=hardware), shape, ranks=1, gpu_gib=79).always


def test_offloaded_optimizer_keeps_a_buffer_for_the_largest_gradient_on_the_gpu() -> None:
    large = replace(BILLION, vocab_size=2**20)
    embedding, mlp = 2 * 2**20 * 100 / 2**30, 2 * 300 * 100 / 2**30
    assert always(shape=large) == pytest.approx(1.5 + embedding)
    assert always() == pytest.approx(1.5 + mlp), "the largest without an embedding"
    assert always("engine.deepspeed.stage=2", shape=large) == pytest.approx(1.5 + embedding)
    assert always("engine.deepspeed.stage=2", "engine.deepspeed.offload_optimizer=false", shape=large) == 1.5
    assert always("engine.learner=torch", shape=large) == 1.5


def test_engine_that_sleeps_keeps_one_and_a_half_gibibytes_beside_the_agent_that_works() -> None:
    words = ("engine.learner=torch", "engine.vllm.memory_share=0.5")
    found = agent_memory(config_of(*words, hardware="one_gpu_vllm"), BILLION, ranks=1, gpu_gib=80)
    assert found.sampling == 2.0 + 40.0 + 12.0 + 2.0
    assert found.resting == 2.0 + 1.5 + 12.0 + 2.0
    assert found.updating == pytest.approx(20.0 + found.activations + 1.5 + 2.0)
    shapes = dict.fromkeys(config_of().pair.agents, BILLION)
    config = config_of(*words, hardware="one_gpu_vllm")
    assert peak_gib(config, shapes, gpu_gib=80, is_least=True) == 56.0 + 17.5 + 0.5, "and a context of all learners"


@pytest.mark.parametrize(
    ("listed", "expected"), [("", 79.0), ("24576\n81559", 24.0), ("144384", 79.0), ("[N/A]", 79.0)]
)
def test_gpu_that_is_here_counts_where_it_has_less_than_is_configured(
    listed: str, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{listed}'\n" if listed else "#!/bin/sh\nexit 9\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # A process that has asked CUDA can choose no GPU of its own any more (flows/service/gpu_locks.py).
    monkeypatch.setattr(torch.cuda, "_lazy_init", None)
    memory.min_gpu_gib.cache_clear()
    try:
        assert gpu_gib(config_of("engine.gpu_memory_gb=79")) == expected
    finally:
        memory.min_gpu_gib.cache_clear()
