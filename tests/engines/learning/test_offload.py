"""Tensors that leave a device and come back: the same bits, the same objects, and training that goes on.

On the CPU both sides are the same memory: the moves are real copies, but no device is relieved. The GPU test shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flows.planning.compose import compose
from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.data.training import load_training
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.agents import Agent
from hacpo_core.placement.initial_model import InitialModel
from tests.conftest import specs_of
from tests.engines.small import scored, small_model
from tests.engines.training import GSPO, HACPO, optimizer_tensors, requests, rows_of, run

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def learner_with_kl(dtype: torch.dtype, device: str = "cpu") -> TorchLearner:
    return TorchLearner(
        small_model().to(device, dtype),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        engine=EngineConfig(dtype=str(dtype).removeprefix("torch."), device=device),
        temperature=1.0,
        total_updates=20,
        reference=small_model(seed=1).to(device, dtype),
    )


def places(learner: TorchLearner) -> dict[str, int]:
    tensors = dict(learner.model.named_parameters()) | optimizer_tensors(learner)
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


@every_dtype
def test_training_goes_on_bit_for_bit_after_moves(dtype: torch.dtype) -> None:
    method, rows = replace(HACPO, kl_coef=0.3), rows_of()
    undisturbed, moved = learner_with_kl(dtype), learner_with_kl(dtype)
    for step in range(4):
        assert run(moved, [rows], method) == run(undisturbed, [rows], method)
        moved.offload(weights=step % 2 == 0)
        assert moved.fingerprint().digest == undisturbed.fingerprint().digest
        for name, tensor in optimizer_tensors(undisturbed).items():
            assert torch.equal(optimizer_tensors(moved)[name], tensor)
        if step == 1:
            assert scored(moved, requests()) == scored(undisturbed, requests())
        if step == 2:
            moved.onload(optimizer=False)
            assert moved.model(torch.arange(4)[None]).logits.shape[1] == 4
    run(moved, [rows], method)
    run(undisturbed, [rows], method)
    assert moved.fingerprint().digest == undisturbed.fingerprint().digest


@every_dtype
def test_everything_that_an_update_needs_really_moves_and_parameters_stay_who_they_are(dtype: torch.dtype) -> None:
    learner = learner_with_kl(dtype)
    run(learner, [rows_of()])
    parameters = [id(p) for p in learner.model.parameters()]
    before = places(learner)
    learner.offload()
    after = places(learner)
    weights = {name for name, _ in learner.model.named_parameters()}
    assert {name for name in before if before[name] == after[name]} == weights
    assert all(p.grad is None for p in learner.model.parameters())
    learner.offload(weights=True)
    assert not weights & {name for name, place in places(learner).items() if place == before[name]}
    assert [id(p) for p in learner.model.parameters()] == parameters
    assert learner.model.lm_head.weight is learner.model.get_input_embeddings().weight  # still tied


def test_checkpoint_is_loaded_into_a_learner_that_was_away() -> None:
    learner = learner_with_kl(torch.bfloat16)
    run(learner, [rows_of()])
    learner.offload(weights=True)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(learner).items()}
    digest = learner.fingerprint().digest
    run(learner, [rows_of()])
    learner.offload(weights=True)
    learner.load_optimizer_tensors(saved, num_updates=1)
    assert learner.fingerprint().digest == digest


@pytest.mark.slow
def test_agent_that_takes_turns_samples_and_learns_the_same(small_models: Path) -> None:
    config = compose(str(small_models / "small.yaml"), "gspo")
    folder = InitialModel("qwen", config.pair.agents["qwen"], small_models / "models").make()
    tokens = AgentTokenizer("qwen", config.pair.agents["qwen"], initial=folder)
    problems = load_training(config.data).problems[:2]
    results = []
    for offloads in (False, True):
        one = replace(config, engine=replace(config.engine, offloads=offloads))
        agent = Agent(tokens, one, initial=folder, folder=folder, version=0)
        found = []
        for step in (1, 2):
            responses = agent.sample(specs_of(one, problems), step=step, purpose="rollout")
            found += agent.score(responses).value_N.tolist()
            assert agent.learner.is_optimizer_offloaded is offloads
            agent.rest()
            assert agent.learner.are_weights_offloaded is offloads
            run(agent.learner, [rows_of()], GSPO)
            agent.rest()
        results.append((found, agent.learner.fingerprint().digest))
    assert results[0] == results[1]


def test_allocator_gives_back_what_is_free_before_a_sampler_starts_and_whenever_others_may_need_it(
    small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Noted(TransformersSampler):
        def __init__(self, *args: Any, **options: Any) -> None:
            events.append("sampler starts")
            super().__init__(*args, **options)

        def synchronise(self, version: int, check: Callable[[], None]) -> None:
            events.append("synchronise")

    monkeypatch.setattr("hacpo_core.placement.agents.release_unused", lambda device: events.append("release"))
    monkeypatch.setattr("hacpo_core.engines.sampling.transformers_sampler.TransformersSampler", Noted)
    config = compose(str(small_models / "small.yaml"), "hacpo")
    folder = InitialModel("qwen", config.pair.agents["qwen"], small_models / "models").make()
    tokens = AgentTokenizer("qwen", config.pair.agents["qwen"], initial=folder)
    agent = Agent(tokens, config, initial=folder, folder=folder, version=0)
    assert events == ["release", "sampler starts"]
    responses = agent.sample(specs_of(config, load_training(config.data).problems[:1]), step=1, purpose="rollout")
    assert events[2:] == ["release", "synchronise"]
    for work in (lambda: agent.score(responses), agent.rest):
        events.clear()
        work()
        assert events == ["release"]
    monkeypatch.setattr(agent.learner, "update", lambda *_, **__: None)
    events.clear()
    agent.update([], config.method.objective, version=1)
    assert events == ["release"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@every_dtype
def test_device_memory_is_free_while_a_learner_is_away(dtype: torch.dtype) -> None:
    def on_device(tensors: list[Tensor]) -> set[str]:
        return {tensor.device.type for tensor in tensors}

    learner, twin = learner_with_kl(dtype, "cuda"), learner_with_kl(dtype, "cuda")
    for one in (learner, twin):
        run(one, [rows_of()])
    held = torch.cuda.memory_allocated()
    learner.offload()
    assert on_device(list(optimizer_tensors(learner).values())) == {"cpu"}
    assert on_device(list(learner.model.parameters())) == {"cuda"}
    half = torch.cuda.memory_allocated()
    learner.offload(weights=True)
    assert on_device(list(learner.model.parameters())) == {"cpu"}
    assert torch.cuda.memory_allocated() < half < held
    assert run(learner, [rows_of()]) == run(twin, [rows_of()])
    assert learner.fingerprint().digest == twin.fingerprint().digest
