"""Chunked scores against the full log-softmax: values, gradients, and the memory that they save.

Shapes: N token, D model width, V vocabulary.
"""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from hacpo_core.engines.passes.logprobs import scores_of_logits, token_scores

NUM_TOKENS, WIDTH, VOCABULARY = 9, 5, 2**16
ROWS_OF_ONE_MB = 2**20 // (4 * VOCABULARY)


def head(*, num_tokens: int = NUM_TOKENS, vocabulary: int = 11) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden_ND, weight_VD and bias_V in float64 with gradient, and target_N."""
    random = torch.Generator().manual_seed(0)
    shapes = ((num_tokens, WIDTH), (vocabulary, WIDTH), (vocabulary,))
    hidden_ND, weight_VD, bias_V = (
        torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return hidden_ND, weight_VD, bias_V, torch.randint(vocabulary, (num_tokens,), generator=random)


def full(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_N: Tensor, temperature: float) -> Tensor:
    logits_NV = hidden_ND @ weight_VD.T + (0.0 if bias_V is None else bias_V)
    return (logits_NV / temperature).log_softmax(dim=1)[torch.arange(len(target_N)), target_N]


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_score_of_a_two_token_vocabulary_by_hand() -> None:
    scores = token_scores(
        torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        torch.tensor([[math.log(3), 0.0], [0.0, 0.0]], dtype=torch.float64),
        None,
        torch.tensor([0]),
    )
    # logits log 3 and 0: 3/4 and 1/4
    assert scores.logprob_N.item() == pytest.approx(math.log(0.75), abs=1e-15)
    assert scores.entropy_N.item() == pytest.approx(0.5623351446188083, abs=1e-15)


def test_temperature_divides_the_logits_and_the_bias() -> None:
    scores = token_scores(
        torch.tensor([[1.0]], dtype=torch.float64),
        torch.tensor([[math.log(3)], [0.0]], dtype=torch.float64),
        torch.tensor([math.log(3), 0.0], dtype=torch.float64),
        torch.tensor([0]),
        temperature=2.0,
    )
    # (log 3 + log 3) / 2 and 0: 3/4 and 1/4 again
    assert scores.logprob_N.item() == pytest.approx(math.log(0.75), abs=1e-15)
    assert scores.entropy_N.item() == pytest.approx(0.5623351446188083, abs=1e-15)


@pytest.mark.parametrize(("temperature", "has_bias"), [(1.0, False), (0.7, True), (2.0, False)])
def test_values_and_gradients_are_those_of_the_full_log_softmax(temperature: float, has_bias: bool) -> None:
    # Four tokens a chunk: nine tokens make two full chunks and a rest.
    hidden_ND, weight_VD, bias_V, target_N = head(vocabulary=VOCABULARY)
    assert ROWS_OF_ONE_MB == 4
    leaves = (hidden_ND, weight_VD, bias_V) if has_bias else (hidden_ND, weight_VD)
    bias_or_none = bias_V if has_bias else None
    upstream_N = torch.linspace(-1.0, 2.0, NUM_TOKENS, dtype=torch.float64)
    scores = token_scores(hidden_ND, weight_VD, bias_or_none, target_N, temperature=temperature, chunk_mb=1)
    expected_N = full(hidden_ND, weight_VD, bias_or_none, target_N, temperature)
    assert_close(scores.logprob_N, expected_N)
    found = torch.autograd.grad((scores.logprob_N * upstream_N).sum(), leaves)
    expected = torch.autograd.grad((expected_N * upstream_N).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_entropy_is_that_of_the_whole_distribution_and_has_no_gradient() -> None:
    hidden_ND, weight_VD, bias_V, target_N = head()
    scores = token_scores(hidden_ND, weight_VD, bias_V, target_N, temperature=0.7)
    logprob_NV = ((hidden_ND @ weight_VD.T + bias_V) / 0.7).log_softmax(dim=1)
    assert_close(scores.entropy_N, -(logprob_NV.exp() * logprob_NV).sum(dim=1).detach())
    assert scores.logprob_N.requires_grad
    assert not scores.entropy_N.requires_grad


def test_gradient_of_an_entropy_by_hand() -> None:
    hidden_ND = torch.tensor([[1.0]], dtype=torch.float64)
    weight_VD = torch.tensor([[math.log(3)], [0.0]], dtype=torch.float64).requires_grad_()
    scores = token_scores(hidden_ND, weight_VD, None, torch.tensor([0]), has_entropy_gradient=True)
    (gradient_VD,) = torch.autograd.grad(scores.entropy_N.sum(), weight_VD)
    # -p (log p + H) of p = 3/4, 1/4 and H = 0.562335
    assert gradient_VD.flatten().tolist() == pytest.approx([-0.2059898041252706, 0.2059898041252706], abs=1e-15)


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_of_entropies_are_those_of_the_full_log_softmax(temperature: float, is_chunked: bool) -> None:
    hidden_ND, weight_VD, bias_V, target_N = head(vocabulary=VOCABULARY)
    leaves = (hidden_ND, weight_VD, bias_V)
    upstream_N, upstream_of_entropy_N = torch.linspace(-1.0, 2.0, 2 * NUM_TOKENS, dtype=torch.float64).chunk(2)
    options = {"temperature": temperature, "has_entropy_gradient": True}
    if is_chunked:
        scores = token_scores(*leaves, target_N, chunk_mb=1, **options)  # type: ignore[arg-type]
    else:
        scores = scores_of_logits(hidden_ND @ weight_VD.T + bias_V, target_N, **options)  # type: ignore[arg-type]
    logprob_NV = ((hidden_ND @ weight_VD.T + bias_V) / temperature).log_softmax(dim=1)
    expected_N = logprob_NV[torch.arange(NUM_TOKENS), target_N]
    expected_entropy_N = -(logprob_NV.exp() * logprob_NV).sum(dim=1)
    assert_close(scores.entropy_N, expected_entropy_N)
    value = (scores.logprob_N * upstream_N + scores.entropy_N * upstream_of_entropy_N).sum()
    expected = (expected_N * upstream_N + expected_entropy_N * upstream_of_entropy_N).sum()
    for one, other in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(expected, leaves), strict=True):
        assert_close(one, other)


def test_one_token_a_chunk_is_the_least_however_large_the_vocabulary() -> None:
    hidden_ND, weight_VD, bias_V, target_N = head(vocabulary=VOCABULARY)
    scores = token_scores(hidden_ND, weight_VD, bias_V, target_N, chunk_mb=0)
    assert_close(scores.logprob_N, full(hidden_ND, weight_VD, bias_V, target_N, 1.0))


def test_no_tokens_give_no_scores_and_no_gradient() -> None:
    hidden_ND, weight_VD, bias_V, target_N = head(num_tokens=0)
    scores = token_scores(hidden_ND, weight_VD, bias_V, target_N)
    assert scores.logprob_N.tolist() == []
    (gradient_VD,) = torch.autograd.grad(scores.logprob_N.sum(), weight_VD)
    assert gradient_VD.eq(0.0).all()


def test_frozen_head_still_passes_the_gradient_on() -> None:
    hidden_ND, weight_VD, bias_V, target_N = head()
    frozen = token_scores(hidden_ND, weight_VD.detach(), bias_V.detach(), target_N)
    (found_ND,) = torch.autograd.grad(frozen.logprob_N.sum(), hidden_ND)
    (expected_ND,) = torch.autograd.grad(full(hidden_ND, weight_VD, bias_V, target_N, 1.0).sum(), hidden_ND)
    assert_close(found_ND, expected_ND)


def test_extreme_logits_stay_finite() -> None:
    hidden_ND = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    scores = token_scores(hidden_ND, torch.tensor([[1.0], [0.0], [-1.0]]), None, torch.tensor([0, 0]))
    assert scores.logprob_N.tolist() == [0.0, -20000.0]
    assert scores.entropy_N.tolist() == [0.0, 0.0]
    (gradient_ND,) = torch.autograd.grad(scores.logprob_N.sum(), hidden_ND)
    assert gradient_ND[:, 0].tolist() == [0.0, 2.0]


def test_bf16_inputs_are_scored_in_fp32() -> None:
    hidden_ND, weight_VD, bias_V, target_N = head()
    narrow = [value.detach().bfloat16() for value in (hidden_ND, weight_VD, bias_V)]
    scores = token_scores(narrow[0], narrow[1], narrow[2], target_N)
    assert scores.logprob_N.dtype == torch.float32
    # The logits carry bf16's rounding; the normalisation must add none of its own.
    logits_NV = (narrow[0] @ narrow[1].T + narrow[2]).double()
    expected_N = logits_NV.log_softmax(dim=1)[torch.arange(NUM_TOKENS), target_N]
    torch.testing.assert_close(scores.logprob_N.double(), expected_N, rtol=0.0, atol=1e-6)


# Prints by how many bytes the chunked way raised the process's peak above what it held before, and then the naive way.
# VmHWM and not getrusage: the latter's peak outlives exec, so a child begins with that of the process that started it.
_MEASURE = """
import torch
from hacpo_core.engines.passes.logprobs import scores_of_logits, token_scores
def memory(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024
torch.set_num_threads(1)
hidden = torch.randn(2048, 8).requires_grad_()
weight = torch.randn(151_936, 8).requires_grad_()
target = torch.randint(151_936, (2048,))
token_scores(hidden[:1], weight, None, target[:1]).logprob_N.sum().backward()  # threads, buffers, both gradients
held = memory("VmRSS")
token_scores(hidden, weight, None, target).logprob_N.sum().backward()
print(memory("VmHWM") - held)
scores_of_logits(hidden[:256] @ weight.T, target[:256]).logprob_N.sum().backward()
print(memory("VmHWM") - held)
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_peak_memory_is_below_an_eighth_of_the_naive_way() -> None:
    result = subprocess.run([sys.executable, "-c", _MEASURE], check=True, capture_output=True, text=True, timeout=280)
    chunked, naive_eighth = (int(line) for line in result.stdout.split())
    # The least that the naive way holds: logits and log-softmax, fp32.
    least_naive, weight_gradient = 2 * 4 * 2048 * 151_936, 4 * 151_936 * 8
    assert chunked - weight_gradient < least_naive / 8
    # The measurement sees what it should: the naive way breaks that bound with an eighth of the tokens.
    assert naive_eighth > least_naive / 8
