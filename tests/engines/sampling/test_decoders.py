"""The fast decoder computes what the model's own class computes, or is not taken.

Shapes: U prompt, B row, T token, V vocabulary.
"""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from hacpo_core.config import LoraConfig
from hacpo_core.engines.models.lora import add_adapters
from hacpo_core.engines.passes.scoring import scoring_head
from hacpo_core.engines.sampling import llama_decoder
from hacpo_core.engines.sampling.decoder_choice import Decoder, decoder_of
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.engines.sampling.llama_decoder import LlamaDecoder
from hacpo_core.errors import ModelError
from tests.engines.small import small_model

pytestmark = pytest.mark.slow

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
ONE_KEY, ALL_KEYS = {"num_key_value_heads": 1}, {"num_key_value_heads": 4}
MODELS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "qwen3 untied, one key head": Qwen3Config(**SIZES | ONE_KEY, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "mistral": MistralConfig(**SIZES, sliding_window=None, tie_word_embeddings=True),
    "mistral untied, all key heads": MistralConfig(**SIZES | ALL_KEYS, sliding_window=None),
    "llama": LlamaConfig(**SIZES),
    "llama biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama scaled rotation": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
}
INPUT_UT = torch.tensor([[0, 0, 0, 5, 9], [1, 2, 3, 4, 60], [0, 7, 8, 9, 10]])
PROMPT_B = torch.tensor([2, 0, 0, 1, 2, 1])


def model_of(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
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


def max_error(found: list[Tensor], expected: list[Tensor]) -> float:
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
    assert max_error(logits_of(decoder, input_UT=input_UT), expected) < 2e-5
    assert min(float(logits.std()) for logits in expected) > 0.1


def test_logits_do_not_depend_on_the_parts_of_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(MODELS["qwen2"])
    decoder = decoder_of(model)()
    expected = logits_of(decoder)
    monkeypatch.setattr(llama_decoder, "PART_TOKENS", 1)
    calls: list[tuple[int, ...]] = []
    start = ModelDecoder.start

    def watched(decoder: ModelDecoder, input_UT: Tensor, *args: Any, **options: Any) -> Tensor:
        calls.append(tuple(input_UT.shape))
        return start(decoder, input_UT, *args, **options)

    monkeypatch.setattr(ModelDecoder, "start", watched)
    assert max_error(logits_of(decoder), expected) < 2e-5
    assert calls == [(1, 2), (1, 5), (1, 4)], "without the padding of longer prompts"


def test_bf16_differs_by_its_own_noise() -> None:
    model = model_of(MODELS["qwen3"], torch.bfloat16)
    decoder = decoder_of(model)()
    assert isinstance(decoder, LlamaDecoder)
    expected = logits_of(ModelDecoder(model))
    found = logits_of(decoder)
    assert expected[-1].dtype == found[-1].dtype == torch.bfloat16
    scale = max(float(logits.abs().max()) for logits in expected)
    assert max_error(found, expected) < 0.1 * scale


DEEP: dict[str, Any] = SIZES | {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 30,
    "head_dim": 32,
}
DEEP_MODELS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**DEEP),
    "qwen2": Qwen2Config(**DEEP),
    "qwen3": Qwen3Config(**DEEP),
    "mistral": MistralConfig(**DEEP, sliding_window=None),
}


def deep_model(family: str, dtype: torch.dtype) -> PreTrainedModel:
    """30 layers, in each of which three channels of the MLP's output are 10 or 20 times as large as the others.

    With 20 times, such a model is little more than noise in bfloat16.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(DEEP_MODELS[family])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
            else:
                parameter.normal_(*((1.0, 0.1) if "norm" in name else (0.0, 0.5)))
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[:3] *= 20.0 if dtype == torch.float32 else 10.0
        model.lm_head.weight.mul_(4.0)
    return model.to(dtype).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", DEEP_MODELS)
def test_deep_model_with_outliers_is_decoded_fast_although_it_is_noisy(family: str, dtype: torch.dtype) -> None:
    model = deep_model(family, dtype)
    decoder = decoder_of(model)()
    assert isinstance(decoder, LlamaDecoder)


def changed_layers(**columns: Any) -> Callable[[LlamaDecoder], None]:
    def change(decoder: LlamaDecoder) -> None:
        decoder._layers = [replace(layer, **columns) for layer in decoder._layers]

    return change


def without_bias(decoder: LlamaDecoder) -> None:
    for layer in decoder._layers:
        for part in layer.qkv:
            object.__setattr__(part, "bias", None)


def one_position_behind(decoder: LlamaDecoder) -> None:
    decoder._position_B = decoder._position_B - 1


def rotated_backwards(decoder: LlamaDecoder) -> None:
    decoder._sine_TK = -decoder._sine_TK


def padding_seen(decoder: LlamaDecoder) -> None:
    decoder._padding_mask_B11T = None


MISTAKES: dict[str, tuple[str, Callable[[LlamaDecoder], None], str]] = {
    "position": ("llama", one_position_behind, "start"),
    "rotation": ("mistral", rotated_backwards, "start"),
    "padding": ("llama", padding_seen, "start"),
    "bias": ("qwen2", without_bias, "__init__"),
    "no head norm": ("qwen3", changed_layers(head_norm=None), "__init__"),
    "other head norm": ("qwen3", changed_layers(head_norm=1.0), "__init__"),
}
"""family, what goes wrong, and after which method of the decoder"""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_decoder_that_computes_something_else_is_not_taken_even_for_a_noisy_model(
    mistake: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    family, change, at = MISTAKES[mistake]
    inner = getattr(LlamaDecoder, at)

    def wrong(decoder: LlamaDecoder, *args: Any, **options: Any) -> Any:
        result = inner(decoder, *args, **options)
        change(decoder)
        return result

    monkeypatch.setattr(LlamaDecoder, at, wrong)
    with caplog.at_level(logging.WARNING):
        decoder = decoder_of(deep_model(family, torch.bfloat16))()
    assert isinstance(decoder, ModelDecoder)
    assert len(caplog.messages) == 1
    assert "its log-probabilities are off by" in caplog.text


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
        ("rwkv", "log-probabilities token by token are off by"),  # its state is elsewhere, and new for every token
        ("mamba", "cannot be sampled token by token"),  # its state cannot be handed to several rows
    ],
)
def test_model_whose_state_is_no_cache_is_refused(family: str, said: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
    with pytest.raises(ModelError, match=f"{said}.*; set engine.sampler=vllm"):
        decoder_of(model)


def test_decoder_reads_the_weights_anew_and_its_batches_know_nothing_of_each_other() -> None:
    model = model_of(MODELS["qwen3"])
    make = decoder_of(model)
    before = logits_of(make())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    decoder = make()
    for input_UT in (INPUT_UT, INPUT_UT.clamp(min=1), INPUT_UT[:, 2:].clamp(min=1), INPUT_UT):
        expected = logits_of(ModelDecoder(model), input_UT=input_UT)
        assert max_error(logits_of(decoder, input_UT=input_UT), expected) < 5e-5
    assert max_error(logits_of(decoder), before) > 0.1


def test_other_models_are_sampled_by_their_own_class_with_one_line_of_reason_and_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rotation = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    for model in (
        model_of(LlamaConfig(**SIZES, hidden_act="gelu")),
        model_of(LlamaConfig(**SIZES, rope_parameters=rotation)),
        model_of(MistralConfig(**SIZES, sliding_window=4)),
        small_model("gpt_neox"),
    ):
        assert isinstance(decoder_of(model)(), ModelDecoder)
    assert len(caplog.messages) == 4
    assert "(its layers are sliding_attention)" in caplog.messages[2]
    assert "the fast decoder is not used (its activation is gelu, not silu), so sampling takes" in caplog.messages[0]
    assert "there is one for llama, mistral, qwen2, qwen3, not for gpt_neox" in caplog.messages[3]
    if importlib.util.find_spec("peft") is not None:
        adapted = model_of(MODELS["qwen3"])
        add_adapters(adapted, LoraConfig(rank=2), seed_parts=(0,))
        assert isinstance(decoder_of(adapted)(), ModelDecoder)
