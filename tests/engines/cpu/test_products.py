"""oneDNN's products are the ones that torch's linear layers compute, where they are taken and where not.

Shapes: N row, I input, O output.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from hacpo_core.engines.cpu import products
from hacpo_core.engines.cpu.products import OneDnnLinear, filled_length, packed, pays, product, use_onednn
from hacpo_core.engines.models.loading import load_model
from hacpo_core.engines.passes.layouts import forward_passes
from hacpo_core.engines.sampling import llama_decoder
from hacpo_core.engines.sampling.decoder_choice import decoder_of
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.engines.sampling.llama_decoder import LlamaDecoder
from tests.engines.sampling.test_decoders import (
    MODELS,
    assert_batches_of_one_decoder_know_nothing_of_each_other,
    assert_weights_are_read_for_every_decoder,
    logits_of,
    max_error,
    model_of,
)
from tests.engines.small import small_model, token_rows
from tests.engines.training import HACPO, LINEAR, learner_of, rows_of, run, weights


@pytest.fixture
def slow_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor on which oneDNN is the faster one, and with sizes of these tests' models."""
    monkeypatch.setattr(products, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(products, "MIN_CONVOLVED", 1)
    monkeypatch.setattr(products, "MIN_FROZEN", 1)


def twins(*, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    other = copy.deepcopy(plain)
    use_onednn(other)
    return plain, other


def results(layer: nn.Linear, shape: tuple[int, ...]) -> list[Tensor]:
    """Output, and gradients of input and parameters."""
    torch.manual_seed(1)
    given = torch.randn(*shape, 24, requires_grad=True)
    out = layer(given)
    return [out, *torch.autograd.grad(out, [given, *layer.parameters()], torch.randn(*shape, 40))]


def convolutions(run: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return [event.key for event in seen.key_averages() if "mkldnn_conv" in event.key or "slow_conv" in event.key]


@pytest.mark.usefixtures("slow_mkl")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(96,), (1, 2048), (4, 3, 8)])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_layer_and_its_gradients_are_those_of_a_linear_layer(
    bias: bool, shape: tuple[int, ...], num_threads: int
) -> None:
    plain, other = twins(bias=bias)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for found, expected in zip(results(other, shape), results(plain, shape), strict=True):
            assert found.shape == expected.shape
            assert (found - expected).norm() < 1e-6 * expected.norm()
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("slow_mkl")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_onednn_convolves_with_one_thread_too(num_threads: int) -> None:
    plain, other = twins(bias=False)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        # torch leaves small inputs to its own convolution.
        assert convolutions(lambda: results(other, (2048,))) == ["aten::mkldnn_convolution"]
    finally:
        torch.set_num_threads(before)
    assert not convolutions(lambda: results(plain, (2048,)))


@pytest.mark.usefixtures("slow_mkl")
def test_where_it_does_not_pay_the_bits_are_the_linear_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = twins(bias=True)
    assert type(other) is OneDnnLinear

    def same(shape: tuple[int, ...]) -> bool:
        return all(map(torch.equal, results(other, shape), results(plain, shape)))

    assert not same((160,))  # what the rest of this test tells apart
    assert same((100,))  # 16 does not divide it
    assert same((0,))
    monkeypatch.setattr(products, "MIN_CONVOLVED", 24 * 40 * 160 + 1)
    assert same((160,))
    assert not same((176,))
    other, plain = other.double(), plain.double()
    assert torch.equal(other(torch.ones(192, 24).double()), plain(torch.ones(192, 24).double()))


@pytest.mark.usefixtures("slow_mkl")
def test_models_keep_their_names_and_other_layers_stay() -> None:
    class Special(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), Special(4, 4), nn.Linear(4, 4, dtype=torch.bfloat16), nn.ReLU())
    names = list(model.state_dict())
    use_onednn(model)
    assert [type(layer) for layer in model] == [OneDnnLinear, Special, nn.Linear, nn.ReLU]
    assert list(model.state_dict()) == names
    assert type(copy.deepcopy(model)[0]) is OneDnnLinear


def test_loaded_models_convolve_where_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_model().save_pretrained(tmp_path)
    for is_slow, kind in ((False, nn.Linear), (True, OneDnnLinear)):
        monkeypatch.setattr(products, "mkl_is_slow", lambda is_slow=is_slow: is_slow)
        layers: Any = load_model(tmp_path).base_model.layers
        assert type(layers[0].mlp.up_proj) is kind
    assert type(load_model(tmp_path, dtype="bfloat16").base_model.layers[0].mlp.up_proj) is nn.Linear


@pytest.mark.usefixtures("slow_mkl")
@pytest.mark.parametrize("num_rows", [1, 7, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_packed_and_of_transposed_weights(num_rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    value_NI, weight_OI = torch.randn(num_rows, 24), torch.randn(40, 24)
    bias_O = torch.randn(40) if has_bias else None
    expected = nn.functional.linear(value_NI.double(), weight_OI.double(), None if bias_O is None else bias_O.double())
    for weight in (weight_OI, packed(weight_OI), weight_OI.T.contiguous().T):
        found = product(value_NI, weight, bias_O)
        assert (found - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.usefixtures("slow_mkl")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limit", ["MAX_PACKED", "MAX_TWICE", None])
def test_decoder_computes_the_models_logits_with_packed_weights(
    name: str, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        monkeypatch.setattr(products if limit == "MAX_TWICE" else llama_decoder, limit, 0)
    used: list[bool] = []

    def seen(value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        used.append(weight.is_mkldnn)
        return product(value, weight, bias)

    monkeypatch.setattr(products, "product", seen)
    model = model_of(MODELS[name])
    use_onednn(model)
    decoder = decoder_of(model)()
    assert isinstance(decoder, LlamaDecoder)
    assert max_error(logits_of(decoder), logits_of(ModelDecoder(model))) < 2e-5
    assert used and set(used) == {limit != "MAX_PACKED"}


@pytest.mark.usefixtures("slow_mkl")
def test_packed_weights_are_made_anew_for_every_decoder() -> None:
    assert_weights_are_read_for_every_decoder()


@pytest.mark.usefixtures("slow_mkl")
def test_packed_weights_serve_all_batches_of_a_decoder() -> None:
    assert_batches_of_one_decoder_know_nothing_of_each_other()


@pytest.mark.usefixtures("slow_mkl")
def test_few_rows_multiply_with_the_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_FROZEN", 10**9)
    monkeypatch.delattr(products, "product")
    model = model_of(MODELS["qwen3"])
    assert max_error(logits_of(decoder_of(model)()), logits_of(ModelDecoder(model))) < 2e-5


def test_update_is_that_of_linear_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_CONVOLVED", 1)
    results = []
    for is_slow in (False, True):
        monkeypatch.setattr(products, "mkl_is_slow", lambda is_slow=is_slow: is_slow)
        model = small_model()
        use_onednn(model)
        learner = learner_of(model, **LINEAR)
        outcomes: list[Any] = []
        taken = convolutions(lambda: outcomes.append(run(learner, [rows_of(num_cross=3) * 20], HACPO)))  # noqa: B023
        assert taken == (["aten::mkldnn_convolution"] if is_slow else [])
        results.append((weights(model), [row.ratio for row in outcomes[0].rows]))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=1e-6)
    assert results[1][1] == pytest.approx(results[0][1], abs=1e-6)


def test_passes_are_filled_up_to_few_lengths() -> None:
    rows = rows_of(num_cross=3)
    for repeats in (1, 5, 40, 300):
        requests = token_rows([row for _ in range(repeats) for row in rows])
        (plain,) = forward_passes(requests, layout="shared_prompts", max_tokens=10**9)
        (filled,) = forward_passes(requests, layout="shared_prompts", max_tokens=10**9, filled_length=filled_length)
        length, longer = plain.input_BT.shape[1], filled.input_BT.shape[1]
        assert torch.equal(filled.input_BT[:, :length], plain.input_BT)
        assert longer // products.IMAGES % 2 == 1 and longer % products.IMAGES == 0
        assert length <= longer < length + max(32, length // 15)


def test_onednn_is_taken_in_fp32_on_the_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_slow in (False, True):
        monkeypatch.setattr(products, "mkl_is_slow", lambda is_slow=is_slow: is_slow)
        assert pays(torch.ones(2, 2)) is is_slow
    assert not pays(torch.ones(2, 2).bfloat16())
    assert not pays(torch.ones(2, 2, device="meta"))


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [("AuthenticAMD", "AVX512", True), ("GenuineIntel", "AVX512", False), ("AuthenticAMD", "AVX2", False)],
)
def test_mkl_leaves_avx512_unused_on_other_processors_than_intels(vendor: str, capability: str, expected: bool) -> None:
    assert products.leaves_avx512_unused(f"processor : 0\nvendor_id : {vendor}\n", capability) is expected


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (lambda weight: torch.ops.mkldnn.an_operator_that_is_not_there(weight), "oneDNN cannot be called"),
        (lambda weight: 2.0 * weight, "got another product than expected"),
    ],
)
def test_operators_that_are_missing_or_compute_something_else_are_not_used(
    packed: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert products.has_operators()
    monkeypatch.setattr(products, "packed", packed)
    assert not products.has_operators()
    assert said in caplog.text
