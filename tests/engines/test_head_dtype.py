"""An fp32 head on a bf16 model: exact products, right gradients, less noise in ratios, sampler and learner alike.

Shapes: N token, D model width, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.passes.logprobs import token_scores
from hacpo_core.engines.passes.scoring import scoring_head
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.errors import EngineError
from hacpo_core.records import SamplingLimits
from tests.engines.models.test_models import capped_model
from tests.engines.small import FAMILIES, VOCAB_SIZE, Request, responses_of, scored, small_model
from tests.engines.training import LINEAR, learner_of, rows_of, run, weights

BF16 = "engine.dtype=bfloat16"


def narrow_head() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden_ND, weight_VD and bias_V in bf16 with gradient, and target_N; logits of a few units."""
    random = torch.Generator().manual_seed(0)
    shapes = ((40, 16), (300, 16), (300,))
    hidden_ND, weight_VD, bias_V = (
        torch.randn(shape, generator=random).bfloat16().requires_grad_() for shape in shapes
    )
    return hidden_ND, weight_VD, bias_V, torch.randint(300, (40,), generator=random)


def test_wide_head_multiplies_bf16_numbers_exactly() -> None:
    hidden_ND, weight_VD, bias_V, target_N = narrow_head()
    logits_NV = hidden_ND.double() @ weight_VD.double().T + bias_V.double()
    expected_N = (logits_NV / 0.7).log_softmax(dim=1)[range(40), target_N]
    wide, same = (
        token_scores(hidden_ND, weight_VD, bias_V, target_N, temperature=0.7, is_wide=is_wide).logprob_N.double()
        for is_wide in (True, False)
    )
    assert (wide - expected_N).abs().max() < 1e-5
    assert (same - expected_N).abs().max() > 1e-2


def test_gradients_of_a_wide_head_are_those_of_the_fp32_product() -> None:
    hidden_ND, weight_VD, bias_V, target_N = narrow_head()
    leaves = (hidden_ND, weight_VD, bias_V)
    upstream_N = torch.linspace(-1.0, 2.0, 40)
    scores = token_scores(hidden_ND, weight_VD, bias_V, target_N, temperature=0.7, chunk_mb=0, is_wide=True)
    logits_NV = hidden_ND.float() @ weight_VD.float().T + bias_V.float()
    expected_N = (logits_NV / 0.7).log_softmax(dim=1)[range(40), target_N]
    found = torch.autograd.grad((scores.logprob_N * upstream_N).sum(), leaves)
    expected = torch.autograd.grad((expected_N * upstream_N).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        # One rounding to bf16 at the end, as autograd has it, and none before.
        torch.testing.assert_close(one.float(), other.float(), rtol=2**-7, atol=1e-5)


def sharp_model(family: str = "qwen3") -> PreTrainedModel:
    """A bf16 model whose logits have a spread of about 5, as those of trained models."""
    model = small_model(family, num_layers=2, gain=2.0)
    norm = model.base_model.final_layer_norm if family == "gpt_neox" else model.base_model.norm
    with torch.no_grad():
        spread = model(torch.arange(30)[None]).logits.std()
        norm.weight.mul_(5.0 / spread)
    return model.bfloat16()


def learner(model: PreTrainedModel, head_dtype: str, *, layout: str = "padded", max_tokens: int = 4096) -> TorchLearner:
    engine = EngineConfig(dtype="bfloat16", head_dtype=head_dtype, micro_batch_tokens=max_tokens, row_layout=layout)
    return TorchLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=1)


def grouped_rows() -> list[Request]:
    random = torch.Generator().manual_seed(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (length,), generator=random).tolist())

    return [Request(prompt, ids(14 + n)) for prompt in [ids(12) for _ in range(16)] for n in range(16)]


def test_ratios_between_two_shapes_of_a_batch_have_less_noise_with_a_wide_head() -> None:
    rows, noise = grouped_rows(), {}
    for head_dtype in ("same", "float32"):
        model = sharp_model()
        one = scored(learner(model, head_dtype), rows)
        other = scored(learner(model, head_dtype, layout="shared_prompts", max_tokens=256), rows)
        log_ratio_B = torch.tensor(
            [sum(a) / len(a) - sum(b) / len(b) for a, b in zip(one, other, strict=True)], dtype=torch.float64
        )
        noise[head_dtype] = log_ratio_B.square().mean().sqrt()
    assert noise["same"] > 1e-4
    assert noise["float32"] < 0.8 * noise["same"]


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_and_learner_agree_better_with_a_wide_head(family: str) -> None:
    model, found = sharp_model(family), {}
    requests = [SampleRequest((1 + n % 5, 2, 3), seed=n) for n in range(64)]
    for head_dtype in ("same", "float32"):
        sampler = TransformersSampler(
            model, eos_ids=[10_000], pad_id=0, batch_size=64, has_wide_head=head_dtype == "float32"
        )
        responses = responses_of(sampler.sample(requests, SamplingLimits(1.0, 1.0, 24)))
        learned_scores = scored(
            learner(model, head_dtype),
            [Request(q.prompt_ids, r.token_ids) for q, r in zip(requests, responses, strict=True)],
        )
        difference_N = torch.tensor([r.logprobs for r in responses]) - torch.tensor(learned_scores)
        found[head_dtype] = difference_N.square().mean().sqrt()
    assert found["float32"] < 0.8 * found["same"]


def test_update_in_bf16_is_closer_to_that_of_fp32_with_a_wide_head() -> None:
    rows = rows_of()

    def move(head_dtype: str, dtype: torch.dtype) -> Tensor:
        model = small_model().bfloat16().to(dtype)
        before = weights(model)
        engine = EngineConfig(dtype=str(dtype).removeprefix("torch."), head_dtype=head_dtype)
        one = learner_of(model, engine=engine, **LINEAR)
        run(one, [rows])
        masters = one.masters or one.trainable
        return torch.cat([masters[name].detach().flatten() for name, _ in model.named_parameters()]) - before

    exact = move("same", torch.float32)
    errors = {head_dtype: (move(head_dtype, torch.bfloat16) - exact).norm() for head_dtype in ("same", "float32")}
    assert errors["float32"] < errors["same"] < exact.norm()


def test_head_that_is_not_linear_cannot_be_wide() -> None:
    with pytest.raises(
        EngineError, match=r"engine.head_dtype: got float32, but Gemma2ForCausalLM has no plain linear head; set it to"
    ):
        scoring_head(capped_model(gain=30.0), is_wide=True)
