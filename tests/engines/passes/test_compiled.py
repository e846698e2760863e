"""Layers compiled for the passes of a learner: the same update, and a sampler that does not notice."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig
from hacpo_core.engines.passes import logprobs
from hacpo_core.engines.passes.compiled import CompiledLayers
from hacpo_core.engines.passes.logprobs import token_scores
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.errors import EngineError
from tests.engines.small import small_model
from tests.engines.training import HACPO, LINEAR, learner_of, rows_of, run, weights

pytestmark = pytest.mark.system

PLAIN = EngineConfig(micro_batch_tokens=24)
COMPILED = replace(PLAIN, compile=True)


def trained(engine: EngineConfig) -> tuple[Tensor, Tensor]:
    """Weights after two updates, and the logits of a prompt between them, as a sampler computes them."""
    model = small_model(num_layers=2)
    learner = learner_of(model, engine=engine, **LINEAR)
    logits = []
    for seed in range(2):
        batches = [rows_of(num_cross=number, seed=seed, model=small_model(num_layers=2)) for number in (3, 5)]
        run(learner, batches, HACPO)
        decoder = ModelDecoder(model)
        ids = torch.tensor([[1, 2, 3]])
        with torch.no_grad():
            decoder.start(ids, torch.ones_like(ids), torch.tensor([0]), max_tokens=1)
            logits.append(decoder.extend(torch.tensor([4])))
    return weights(model), torch.cat(logits)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(logprobs, "COMPILER", request.param)
    monkeypatch.setattr(logprobs, "_compiled_once", cache(logprobs.compiled_function))


@pytest.mark.parametrize(("backend", "recomputes"), [("aot_eager", False), ("inductor", True)], indirect=["backend"])
def test_update_and_sampling_are_those_of_plain_layers(backend: None, recomputes: bool) -> None:
    engine = replace(COMPILED, gradient_checkpointing=recomputes)
    for found, expected in zip(trained(engine), trained(replace(engine, compile=False)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    frames: dict[str, Any] = dict(counters["frames"])
    assert 0 < frames["ok"] == frames["total"] <= 8, "once for all layers, shapes and rows; with and without gradient"
    assert not counters["recompile_limit"]


@pytest.mark.deepspeed
@pytest.mark.parametrize("backend", ["aot_eager"], indirect=True)
@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_trains_compiled_layers(backend: None, stage: int) -> None:
    pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    engine = replace(COMPILED, learner="deepspeed", deepspeed=DeepspeedConfig(stage=stage))
    model, options = small_model(num_layers=2), OptimizerConfig(**LINEAR)
    learner = DeepspeedLearner(model, optimizer=options, engine=engine, temperature=1.0, total_updates=20)
    plain_model = small_model(num_layers=2)
    rows = rows_of(model=plain_model)
    run(learner, [rows], HACPO)
    num_graphs = counters["stats"]["unique_graphs"]
    with learner._compiled_layers():
        learner.backward(learner._score_nothing())
    assert counters["stats"]["unique_graphs"] == num_graphs, "an empty pass compiles nothing"
    run(learner_of(plain_model, engine=PLAIN, **LINEAR), [rows], HACPO)
    learner.close()
    torch.testing.assert_close(weights(model), weights(plain_model), rtol=0.0, atol=1e-5)
    assert counters["frames"]["ok"] > 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"], indirect=["backend"])
@pytest.mark.parametrize(("temperature", "has_entropy_gradient"), [(1.0, False), (0.7, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_gradients_of_a_compiled_head(
    backend: None, temperature: float, has_entropy_gradient: bool, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(0)
    shapes: Any = ((9, 5), (2**16, 5), 2**16)
    hidden_ND, weight_VD, bias_V = leaves = [
        torch.randn(shape, generator=random).to(dtype).requires_grad_() for shape in shapes
    ]
    target_N, upstream_N = torch.arange(9) * 7, torch.linspace(-1.0, 2.0, 9)
    options: dict[str, Any] = {"temperature": temperature, "has_entropy_gradient": has_entropy_gradient, "chunk_mb": 1}

    def results(*, is_compiled: bool) -> list[Tensor]:
        scores = token_scores(hidden_ND, weight_VD, bias_V, target_N, **options, is_compiled=is_compiled)
        value = (scores.logprob_N * upstream_N).sum()
        if has_entropy_gradient:
            value = value + (scores.entropy_N * upstream_N).sum()
        return [*scores, *torch.autograd.grad(value, leaves)]

    plain, compiled = results(is_compiled=False), results(is_compiled=True)
    for found, expected in zip(compiled, plain, strict=True):
        # On the CPU, compiled sums over the vocabulary are running ones.
        rtol = 2e-2 if found.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(found, expected, rtol=rtol, atol=5e-4)
    frames: dict[str, Any] = dict(counters["frames"])
    assert 0 < frames["ok"] == frames["total"] <= 4, "chunks of four tokens and of the last one; scores and gradient"


def test_failure_of_the_compiler_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(graph: object, inputs: object) -> None:
        raise OSError("gcc: not found")

    torch._dynamo.reset()
    monkeypatch.setattr(logprobs, "COMPILER", failing)
    learner = learner_of(small_model(), engine=COMPILED, **LINEAR)
    with pytest.raises(EngineError, match=r"engine\.compile: got true, but torch\.compile failed \(.*gcc: not found"):
        run(learner, [rows_of()], HACPO)


@pytest.mark.parametrize("backend", ["eager"], indirect=True)
def test_layers_are_compiled_in_the_block_alone(backend: None) -> None:
    model = small_model(num_layers=2)
    layers: Any = model.base_model.layers
    compiled_layers = CompiledLayers(model)
    assert not any("forward" in vars(layer) for layer in layers)
    with compiled_layers.used(), compiled_layers.used():
        assert all("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in layers)


def test_model_without_named_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    monkeypatch.setattr(model, "_no_split_modules", None)
    with pytest.raises(EngineError, match="engine.compile: Qwen3ForCausalLM does not name its layers"):
        learner_of(model, engine=COMPILED)
