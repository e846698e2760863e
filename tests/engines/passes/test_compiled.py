"""Layers compiled for the passes of a learner: the same update, and a sampler that does not notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from flows.planning.compose import compose
from hacpo_core.config import DeepspeedConfig, EngineConfig, OptimizerConfig
from hacpo_core.engines.passes import compiled
from hacpo_core.engines.passes.compiled import CompiledLayers
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.errors import ConfigError, EngineError
from tests.engines.small import small_model
from tests.engines.training import HACPO, LINEAR, learner_of, rows_of, run, weights

PLAIN = EngineConfig(micro_batch_tokens=24)
COMPILED = replace(PLAIN, compile_layers=True)


def trained(engine: EngineConfig) -> tuple[Tensor, Tensor]:
    """Weights after two updates, and the logits of a prompt between them, as a sampler computes them."""
    model = small_model(num_layers=2)
    learner = learner_of(model, engine=engine, **LINEAR)
    logits = []
    for seed in range(2):
        batches = [rows_of(num_cross=number, seed=seed, model=small_model(num_layers=2)) for number in (3, 5)]
        run(learner, batches, HACPO, measures_cosine=True)
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
    monkeypatch.setattr(compiled, "BACKEND", request.param)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "recomputes"),
    [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", True, marks=pytest.mark.system)],
    indirect=["backend"],
)
def test_update_and_sampling_are_those_of_plain_layers(backend: None, recomputes: bool) -> None:
    engine = replace(COMPILED, gradient_checkpointing=recomputes)
    for found, expected in zip(trained(engine), trained(replace(engine, compile_layers=False)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    frames: dict[str, Any] = dict(counters["frames"])
    assert 0 < frames["ok"] == frames["total"] <= 8, "once for all layers, shapes and rows; with and without gradient"
    assert not counters["recompile_limit"]


@pytest.mark.deepspeed
@pytest.mark.slow
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
    run(learner, [rows], HACPO, measures_cosine=True)
    run(learner_of(plain_model, engine=PLAIN, **LINEAR), [rows], HACPO, measures_cosine=True)
    learner.close()
    torch.testing.assert_close(weights(model), weights(plain_model), rtol=0.0, atol=1e-5)
    assert counters["frames"]["ok"] > 0


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
    with pytest.raises(EngineError, match="engine.compile_layers: Qwen3ForCausalLM does not name its layers"):
        learner_of(model, engine=COMPILED)


def test_stage_three_is_refused() -> None:
    words = ["engine.learner=deepspeed", "engine.deepspeed.stage=3", "engine.compile_layers=true"]
    with pytest.raises(ConfigError, match="engine.compile_layers: got true at engine.deepspeed.stage=3"):
        compose("tiny", "hacpo", overrides=words)
