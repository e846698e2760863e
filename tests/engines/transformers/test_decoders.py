"""The fast decoder computes what the model's own class computes, or is not taken.

Shapes: U prompt, B row, T token, V vocabulary.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hacpo_core.config import LoraConfig
from hacpo_core.engines.cpu import llama_decoder
from hacpo_core.engines.cpu.llama_decoder import LlamaDecoder
from hacpo_core.engines.scoring import scoring_head
from hacpo_core.engines.torch.lora import add_adapters
from hacpo_core.engines.transformers.decoder_choice import decoder_of
from hacpo_core.engines.transformers.decoders import Decoder, ModelDecoder
from hacpo_core.errors import ModelError
from tests.engines.small import small_model

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "qwen3 untied, one key head": Qwen3Config(**SIZES | {"num_key_value_heads": 1}, tie_word_embeddings=False),
    "llama": LlamaConfig(**SIZES),
    "llama biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama scaled rotation": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
}
INPUT_UT = torch.tensor([[0, 0, 0, 5, 9], [1, 2, 3, 4, 60], [0, 7, 8, 9, 10]])
MASK_UT = (INPUT_UT != 0).long()
PROMPT_B = torch.tensor([2, 0, 0, 1, 2, 1])


def model_of(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    kind = LlamaForCausalLM if isinstance(config, LlamaConfig) else Qwen3ForCausalLM
    model: PreTrainedModel = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).eval()


@torch.no_grad()
def logits_of(decoder: Decoder, *, input_UT: Tensor = INPUT_UT, num_tokens: int = 12) -> list[Tensor]:
    """Behind the prompts, and behind each of some tokens; half of the rows go on alone from the middle."""
    found = [decoder.start(input_UT, (input_UT != 0).long(), PROMPT_B, max_tokens=num_tokens)]
    rows = torch.arange(len(PROMPT_B))
    for t in range(num_tokens):
        if t == num_tokens // 2:
            kept = torch.tensor([1, 3, 4])
            decoder.keep(kept)
            rows = rows[kept]
        found.append(decoder.extend((7 * rows + 3 * t) % 61))
    return found


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_padded", [True, False])
def test_logits_are_those_of_the_models_own_class(name: str, is_padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_decoder, "GROW_TOKENS", 2)  # the cache grows several times
    model = model_of(MODELS[name])
    input_UT = INPUT_UT if is_padded else INPUT_UT.clamp(min=1)
    decoder = decoder_of(model)()
    assert isinstance(decoder, LlamaDecoder)
    expected = logits_of(ModelDecoder(model), input_UT=input_UT)
    assert largest_error(logits_of(decoder, input_UT=input_UT), expected) < 2e-5
    assert min(float(logits.std()) for logits in expected) > 0.1


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_weights_multiply_one_by_one_where_a_joined_copy_would_be_large(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(MODELS[name])
    joined = logits_of(decoder_of(model)())
    monkeypatch.setattr(llama_decoder, "LARGEST_COPY", 0)
    assert largest_error(logits_of(decoder_of(model)()), joined) < 2e-5


def assert_weights_are_read_for_every_decoder() -> None:
    model = model_of(MODELS["qwen3"])
    make = decoder_of(model)
    before = logits_of(make())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    after = logits_of(make())
    assert largest_error(after, logits_of(ModelDecoder(model))) < 5e-5
    assert largest_error(after, before) > 0.1


def test_weights_are_read_for_every_decoder() -> None:
    assert_weights_are_read_for_every_decoder()


def assert_batches_of_one_decoder_know_nothing_of_each_other() -> None:
    model = model_of(MODELS["qwen3"])
    decoder = decoder_of(model)()
    assert isinstance(decoder, LlamaDecoder)
    for input_UT in (INPUT_UT, INPUT_UT.clamp(min=1), INPUT_UT[:, 2:].clamp(min=1), INPUT_UT):
        expected = logits_of(ModelDecoder(model), input_UT=input_UT)
        assert largest_error(logits_of(decoder, input_UT=input_UT), expected) < 2e-5


def test_batches_of_one_decoder_know_nothing_of_each_other() -> None:
    assert_batches_of_one_decoder_know_nothing_of_each_other()


@pytest.mark.parametrize("has_wide_head", [False, True])
def test_bf16_differs_by_its_own_noise(has_wide_head: bool) -> None:
    model = model_of(MODELS["qwen3"], torch.bfloat16)
    decoder = decoder_of(model, has_wide_head=has_wide_head)()
    assert isinstance(decoder, LlamaDecoder)
    expected = logits_of(ModelDecoder(model, has_wide_head=has_wide_head))
    found = logits_of(decoder)
    assert expected[-1].dtype == found[-1].dtype == (torch.float32 if has_wide_head else torch.bfloat16)
    scale = max(float(logits.abs().max()) for logits in expected)
    assert largest_error(found, expected) < 0.1 * scale


UNLIKE = {
    "another family": lambda: small_model("gpt_neox"),
    "another activation": lambda: model_of(LlamaConfig(**SIZES, hidden_act="gelu")),
    "a sliding window": lambda: model_of(
        Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    ),
    "a rotation that depends on the length": lambda: model_of(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_other_models_are_sampled_by_their_own_class(name: str) -> None:
    assert isinstance(decoder_of(UNLIKE[name]())(), ModelDecoder)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="the lora extra is not installed")
def test_adapters_are_not_left_out() -> None:
    model = model_of(MODELS["qwen3"])
    add_adapters(model, LoraConfig(rank=2), seed_parts=(0,))
    assert isinstance(decoder_of(model)(), ModelDecoder)


def test_decoder_that_computes_something_else_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extend = LlamaDecoder.extend
    monkeypatch.setattr(LlamaDecoder, "extend", lambda decoder, token_B: 1.01 * extend(decoder, token_B))
    with caplog.at_level(logging.WARNING):
        decoder = decoder_of(model_of(MODELS["llama"]))()
    assert isinstance(decoder, ModelDecoder)
    assert "using the model's own class" in caplog.text


def test_weights_that_are_no_numbers_are_named_as_such(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(MODELS["llama"])
    with torch.no_grad():
        next(model.parameters())[3] = torch.nan
    scoring_head(model)
    assert not caplog.messages, "nothing is said of the head"
    with pytest.raises(ModelError, match="its weights contain nan or infinity; save the model again or"):
        decoder_of(model)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("rwkv", "logits token by token are off by"),  # its state is elsewhere, and starts anew with every token
        ("mamba", "cannot be sampled token by token"),  # its state cannot be handed to several rows
    ],
)
def test_model_whose_state_is_no_cache_is_refused(family: str, said: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
    with pytest.raises(ModelError, match=f"{said}.*; set engine.sampler=vllm"):
        decoder_of(model)
