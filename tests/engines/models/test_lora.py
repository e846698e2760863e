"""Adapters: what is trained, what stays to the bit, and that merged weights are the same policy.

Shapes: B sequence, T token.
"""

import importlib.util
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from flows.planning.plans import Plan
from hacpo_core.config import EngineConfig, LoraConfig
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.models.lora import add_adapters, base_head, merged_parts, save_model, without_adapters
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.errors import EngineError
from hacpo_core.placement.agent_tokenizer import AgentTokenizer
from hacpo_core.placement.checkpoints import latest_checkpoint, load_agent
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.records import SamplingLimits
from tests.engines.small import FAMILIES, VOCAB_SIZE, Request, responses_of, scored, small_model
from tests.engines.training import HACPO, learner_of, optimizer_tensors, requests, rows_of, run
from tests.test_resume import break_off, finish

IDS_BT = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("peft") is None, reason="peft is not installed here; pip install 'hacpo[lora]'"
    ),
]
every_family = pytest.mark.parametrize("family", FAMILIES)
LORA = LoraConfig(rank=4, alpha=8.0)


def with_adapters(model: PreTrainedModel, lora: LoraConfig = LORA, *, seed: int = 0) -> PreTrainedModel:
    add_adapters(model, lora, seed_parts=(seed, "lora", "qwen"))
    return model


def untrained(family: str = "qwen3", *, num_layers: int = 2, dtype: torch.dtype = torch.float32) -> TorchLearner:
    """A learner of adapters."""
    return learner_of(
        with_adapters(small_model(family, num_layers=num_layers).to(dtype)),
        engine=EngineConfig(lora=LORA, dtype=str(dtype).removeprefix("torch.")),
        learning_rate=1e-2,
        warmup_updates=3,
        schedule="cosine",
    )


def trained(family: str = "qwen3", *, num_layers: int = 2, dtype: torch.dtype = torch.float32) -> TorchLearner:
    """A learner whose adapters have moved."""
    learner = untrained(family, num_layers=num_layers, dtype=dtype)
    run(learner, [rows_of(model=small_model(family, num_layers=num_layers))] * 3)
    return learner


def base_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Weights without adapters, by their first names."""
    return {n.replace(".base_layer", ""): t for n, t in model.state_dict().items() if ".lora_" not in n}


@every_family
def test_fresh_adapters_leave_the_policy_as_it_was(family: str) -> None:
    plain, adapted = small_model(family), with_adapters(small_model(family))
    assert torch.equal(plain(IDS_BT).logits, adapted(IDS_BT).logits)


def test_adapters_depend_on_their_seed_alone_and_begin_with_nothing_in_b() -> None:
    torch.manual_seed(1)
    one = with_adapters(small_model())
    torch.manual_seed(2)
    same, other = with_adapters(small_model()), with_adapters(small_model(), seed=1)
    state = one.state_dict()
    adapters = {name: tensor for name, tensor in state.items() if ".lora_" in name}
    assert len(adapters) == 2 * 7  # four of attention, three of the MLP
    assert all(torch.equal(tensor, same.state_dict()[name]) for name, tensor in adapters.items())
    for name, tensor in adapters.items():
        if ".lora_B." in name:
            assert tensor.eq(0.0).all()
        else:
            assert not torch.equal(tensor, other.state_dict()[name])
            assert 0.5 / tensor.shape[1] ** 0.5 < tensor.abs().max() <= 1 / tensor.shape[1] ** 0.5


@every_family
def test_training_moves_the_adapters_and_no_other_bit(family: str) -> None:
    learner = trained(family)
    untouched = small_model(family, num_layers=2).state_dict()
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in base_state(learner.model).items())
    assert {name.split(".")[-2] for name, p in learner.model.named_parameters() if p.requires_grad} == {"default"}
    assert all(".lora_" in name for name in learner.trainable)
    moved = {name: p for name, p in learner.model.named_parameters() if ".lora_B." in name}
    assert all(p.abs().max() > 1e-3 for p in moved.values())


def test_saving_a_model_on_the_cpu_leaves_deepspeed_to_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    for has_gpu, expected in ((True, None), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        save_model(small_model(), tmp_path / str(has_gpu))
        assert os.environ.get("DS_ACCELERATOR") == expected


def merged(model: PreTrainedModel, named_tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {part.name: part.read() for part in merged_parts(model, named_tensors)}


@every_family
def test_merged_weights_are_the_same_policy(family: str, tmp_path: Path) -> None:
    model = trained(family).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        expected, plain = model(IDS_BT).logits, small_model(family, num_layers=2)(IDS_BT).logits
    save_model(model, tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    in_memory = small_model(family, num_layers=2)
    missing = in_memory.load_state_dict(merged(model, model.named_parameters()), strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight", "embed_out.weight"}  # tied to the input's
    for model_of_both in (loaded, in_memory):
        with torch.no_grad():
            torch.testing.assert_close(model_of_both(IDS_BT).logits, expected, rtol=0.0, atol=1e-5)
        assert {name for name, _ in model_of_both.named_parameters()} == {
            name for name, _ in small_model(family, num_layers=2).named_parameters()
        }
    assert (expected - plain).abs().max() > 0.1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_merged_weights_leave_the_device_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_adapters(small_model())
    on_host: list[weakref.ref[Tensor]] = []

    def cpu(weight: Tensor) -> Tensor:
        assert all(earlier() is None for earlier in on_host), "those before are no longer on the device"
        on_host.append(weakref.ref(weight))
        return weight.clone()

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "cpu", cpu)
        patch.setattr(type(model), "save_pretrained", lambda *_, **__: None)
        save_model(model, tmp_path)
    assert len(on_host) == sum(".lora_A." in name for name, _ in model.named_parameters())
    named = model.named_parameters()
    before = {part.name: part for part in merged_parts(model, named)}  # nothing is computed before it is read
    assert before["model.embed_tokens.weight"].read().data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_merged_weight_by_hand() -> None:
    model = with_adapters(small_model(), LoraConfig(rank=1, alpha=3.0))
    layer = model.base_model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.lora_A.default.weight.copy_(torch.arange(16.0)[None])
        layer.lora_B.default.weight.copy_(torch.arange(16.0)[:, None])
    weight = merged(model, model.named_parameters())["model.layers.0.self_attn.q_proj.weight"]
    plain = small_model().base_model.layers[0].self_attn.q_proj.weight
    assert weight[2, 5].item() == pytest.approx(plain[2, 5].item() + 3.0 * 2.0 * 5.0, rel=1e-6)


def test_layer_that_holds_its_weight_transposed_is_merged_as_well() -> None:
    config = GPT2Config(vocab_size=VOCAB_SIZE, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = with_adapters(GPT2LMHeadModel(config).eval())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
        plain = GPT2LMHeadModel(config).eval()
        plain.load_state_dict(merged(model, model.state_dict().items()))
        torch.testing.assert_close(plain(IDS_BT).logits, model(IDS_BT).logits, rtol=0.0, atol=1e-5)


def test_sampler_draws_from_the_adapted_policy() -> None:
    learner = trained()
    sampler = TransformersSampler(learner.model, eos_ids=[10_000], pad_id=0, batch_size=8)
    asked = [SampleRequest((1 + n % 3, 2), seed=n) for n in range(16)]
    responses = responses_of(sampler.sample(asked, SamplingLimits(1.0, 1.0, 8)))
    learned_scores = scored(
        learner, [Request(q.prompt_ids, r.token_ids) for q, r in zip(asked, responses, strict=True)]
    )
    for response, logprobs in zip(responses, learned_scores, strict=True):
        assert response.logprobs == pytest.approx(logprobs, abs=1e-5)
    with without_adapters(learner.model):
        assert responses_of(sampler.sample(asked, SamplingLimits(1.0, 1.0, 8))) != responses
    assert responses_of(sampler.sample(asked, SamplingLimits(1.0, 1.0, 8))) == responses


@every_family
@pytest.mark.parametrize("checkpoints", [False, True])
def test_kl_to_the_frozen_base_is_that_to_a_second_model(family: str, checkpoints: bool) -> None:
    results = []
    method = replace(HACPO, kl_coef=0.5)
    rows = rows_of(model=small_model(family, num_layers=2))
    for is_shared in (True, False):
        model = with_adapters(small_model(family, num_layers=2))
        reference = base_head(model) if is_shared else small_model(family, num_layers=2)
        engine = EngineConfig(lora=LORA, gradient_checkpointing=checkpoints)
        learner = learner_of(model, reference=reference, engine=engine, learning_rate=1e-2)
        outcome = run(learner, [rows] * 4, method)
        results.append((learner.fingerprint().digest, outcome))
        assert max(row.kl for row in outcome.rows) > 1e-4
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_bit_for_bit_after_a_restart(dtype: torch.dtype) -> None:
    first = trained(dtype=dtype)
    saved = {name: value.clone() for name, value in optimizer_tensors(first).items()}
    assert {name.partition(".")[0] for name in saved} >= {"trained", "exp_avg", "exp_avg_sq", "step"}
    second = untrained(dtype=dtype)
    second.load_optimizer_tensors(saved, num_updates=3)
    assert second.fingerprint().digest == first.fingerprint().digest
    assert scored(second, requests()) == scored(first, requests())
    assert run(second, [rows_of()] * 2) == run(first, [rows_of()] * 2)
    assert second.fingerprint().digest == first.fingerprint().digest


def test_missing_peft_is_one_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        EngineError, match=r"engine.lora: peft cannot be imported .*pip install 'hacpo\[lora\]', or set"
    ):
        with_adapters(small_model())


SMALL_LORA = ("engine.lora.rank=4", "optimizer.learning_rate=1e-2", "method.objective.kl_coef=0.01")


@pytest.mark.system
def test_experiment_with_adapters_resumes_to_the_same_bits_and_keeps_ordinary_models(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    whole = small_plan("hacpo", *SMALL_LORA, runs_dir=tmp_path / "reference")
    expected = finish(whole)
    broken = small_plan("hacpo", *SMALL_LORA)
    break_off(broken, "update", 4)  # behind the checkpoint of step 2, with an update to replay
    assert finish(broken) == expected

    checkpoint = latest_checkpoint(whole.root)
    assert checkpoint is not None and checkpoint.step == 4
    for name, agent_config in whole.config.pair.agents.items():
        merged = AutoModelForCausalLM.from_pretrained(checkpoint.folder / name)
        assert not any("lora" in key for key in merged.state_dict())
        folder = InitialModel(name, agent_config, tmp_path / "reference" / "models").make()
        tokens = AgentTokenizer(name, agent_config, initial=folder)
        agent = load_agent(tokens, checkpoint, config=whole.config, initial=folder)
        untouched = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert all(torch.equal(tensor, untouched[key]) for key, tensor in base_state(agent.model).items())
        with torch.no_grad():
            torch.testing.assert_close(merged(IDS_BT).logits, agent.model(IDS_BT).logits, rtol=0.0, atol=1e-4)
            assert (
                merged(IDS_BT).logits - AutoModelForCausalLM.from_pretrained(folder)(IDS_BT).logits
            ).abs().max() > 0.1
