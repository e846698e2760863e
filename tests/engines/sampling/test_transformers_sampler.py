"""The sampler: a response depends on its request alone, and follows the policy's distribution.

Shapes: B sequence, V vocabulary, T token.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from hacpo_core.config import EngineConfig, OptimizerConfig
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.sampling import transformers_sampler
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.decoders import ModelDecoder
from hacpo_core.engines.sampling.llama_decoder import LlamaDecoder
from hacpo_core.engines.sampling.transformers_sampler import (
    TransformersSampler,
    choose,
    nucleus,
    without_cudnn_attention,
)
from hacpo_core.records import SamplingLimits
from tests.engines.small import FAMILIES, Request, Response, logprobs_of, responses_of, scored, small_model

NO_EOS = (10_000,)
LIMITS = SamplingLimits(temperature=1.0, top_p=1.0, max_tokens=8)
PROMPTS = ((1, 2, 3), (4,), (5, 6, 7, 8, 9), (1, 2), (4, 4, 4))
REQUESTS = [SampleRequest(PROMPTS[n % len(PROMPTS)], seed=1000 + n) for n in range(20)]

every_family = pytest.mark.parametrize("family", FAMILIES)


def test_cudnn_attention_is_off_while_a_gpu_samples_and_left_alone_otherwise() -> None:
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


@cache
def shared_model(family: str) -> PreTrainedModel:
    return small_model(family, num_layers=2, gain=8.0)


def sampler_of(family: str = "qwen3", *, eos_ids: Iterable[int] = NO_EOS, batch_size: int = 64) -> TransformersSampler:
    return TransformersSampler(shared_model(family), eos_ids=eos_ids, pad_id=0, batch_size=batch_size)


@cache
def unending(family: str) -> tuple[Response, ...]:
    """Responses to REQUESTS that nothing ends but the limit."""
    return tuple(responses_of(sampler_of(family).sample(REQUESTS, LIMITS)))


@cache
def frequent(family: str) -> tuple[int, int]:
    """The two tokens that most of those responses hold, as EOS ids of tests."""
    counts = Counter(token for response in unending(family) for token in set(response.token_ids))
    (first, _), (second, _) = counts.most_common(2)
    return first, second


def assert_same(found: Iterable[Response], expected: Iterable[Response]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.slow
@every_family
def test_responses_do_not_depend_on_batch_or_order(family: str) -> None:
    eos_ids = frequent(family)
    expected = responses_of(sampler_of(family, eos_ids=eos_ids).sample(REQUESTS, LIMITS))
    for batch_size in (1, 3):
        assert_same(
            responses_of(sampler_of(family, eos_ids=eos_ids, batch_size=batch_size).sample(REQUESTS, LIMITS)), expected
        )
    order = torch.randperm(len(REQUESTS), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = responses_of(
        sampler_of(family, eos_ids=eos_ids, batch_size=7).sample([REQUESTS[r] for r in order], LIMITS)
    )
    assert_same(shuffled, [expected[r] for r in order])
    assert_same(responses_of(sampler_of(family, eos_ids=eos_ids).sample(REQUESTS[5:6], LIMITS)), expected[5:6])
    assert len({response.token_ids for response in expected}) > 15


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_rows_without_a_token_are_never_sampled(family: str) -> None:
    unknown = frequent(family)
    model = shared_model(family)
    sampler = TransformersSampler(model, eos_ids=NO_EOS, pad_id=0, batch_size=64, unknown_ids=unknown)
    for limits in (LIMITS, replace(LIMITS, top_p=0.9), replace(LIMITS, is_greedy=True)):
        for request, response in zip(REQUESTS, responses_of(sampler.sample(REQUESTS, limits)), strict=True):
            assert not set(response.token_ids) & set(unknown)
            logprob_TV = logprobs_of(model, Request(request.prompt_ids, response.token_ids))
            expected = logprob_TV[range(len(response.token_ids)), list(response.token_ids)]
            assert response.logprobs == pytest.approx(expected.tolist(), abs=1e-5), "as the learner's"


def test_every_call_samples_from_the_weights_as_they_are() -> None:
    model = small_model("qwen3", num_layers=2, gain=8.0)
    sampler = TransformersSampler(model, eos_ids=NO_EOS, pad_id=0, batch_size=7)
    before = responses_of(sampler.sample(REQUESTS, LIMITS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    after = responses_of(sampler.sample(REQUESTS, LIMITS))
    assert_same(
        after, responses_of(TransformersSampler(model, eos_ids=NO_EOS, pad_id=0, batch_size=7).sample(REQUESTS, LIMITS))
    )
    assert [response.token_ids for response in after] != [response.token_ids for response in before]


@every_family
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_reported_logprobs_are_those_of_the_learner(family: str, temperature: float) -> None:
    limits = SamplingLimits(temperature, 0.8, 8)
    responses = responses_of(sampler_of(family, eos_ids=frequent(family)).sample(REQUESTS, limits))
    learner = TorchLearner(
        shared_model(family),
        optimizer=OptimizerConfig(),
        engine=EngineConfig(),
        temperature=temperature,
        total_updates=1,
    )
    learned_scores = scored(
        learner, [Request(q.prompt_ids, r.token_ids) for q, r in zip(REQUESTS, responses, strict=True)]
    )
    for response, logprobs in zip(responses, learned_scores, strict=True):
        assert response.logprobs == pytest.approx(logprobs, abs=1e-5)


@every_family
def test_first_of_several_eos_ids_ends_a_response_and_is_part_of_it(family: str) -> None:
    eos_ids = frequent(family)
    found = responses_of(sampler_of(family, eos_ids=eos_ids).sample(REQUESTS, LIMITS))
    ends = Counter()  # type: Counter[int | None]
    for response, whole in zip(found, unending(family), strict=True):
        end = next((t for t, token in enumerate(whole.token_ids) if token in eos_ids), None)
        length = 8 if end is None else end + 1
        assert response.token_ids == whole.token_ids[:length]
        assert len(response.logprobs) == length
        assert response.finish_reason == ("length" if end is None else "stop")
        ends[None if end is None else whole.token_ids[end]] += 1
    assert set(ends) >= set(eos_ids)


def test_eos_on_the_last_allowed_token_is_a_stop() -> None:
    whole = unending("qwen3")[0]
    end = whole.token_ids.index(whole.token_ids[3])
    (found,) = responses_of(
        sampler_of(eos_ids=[whole.token_ids[3]]).sample(REQUESTS[:1], SamplingLimits(1.0, 1.0, end + 1))
    )
    assert (found.token_ids, found.finish_reason) == (whole.token_ids[: end + 1], "stop")


def test_what_a_models_own_class_keeps_from_sampling_can_be_trained_with() -> None:
    model, tables = small_model("gpt_neox", num_layers=2), []

    def scaled(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if not tables:  # as some classes do with cosines and masks
            tables.append(torch.full((1,), 2.0))
        return output * tables[0]

    model.get_input_embeddings().register_forward_hook(scaled)
    responses_of(TransformersSampler(model, eos_ids=NO_EOS, pad_id=0, batch_size=64).sample(REQUESTS[:2], LIMITS))
    assert len(tables) == 1
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.get_input_embeddings().parameters())


@every_family
def test_compaction_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt: list[int] = []
    kind = ModelDecoder if family == "gpt_neox" else LlamaDecoder
    keep = kind.keep

    def counted(decoder: Any, rows: torch.Tensor) -> None:
        rebuilt.append(len(rows))
        keep(decoder, rows)

    monkeypatch.setattr(kind, "keep", counted)
    results, counts = [], []
    for share in (0.0, 0.8, 1.1):  # never, as shipped, whenever a row is left
        monkeypatch.setattr(transformers_sampler, "COMPACT_BELOW", share)
        sampler = sampler_of(family, eos_ids=frequent(family))
        responses_of(sampler.sample(REQUESTS[:1], LIMITS))  # the first call tries the decoder out
        rebuilt.clear()
        results.append(responses_of(sampler.sample(REQUESTS, LIMITS)))
        counts.append(len(rebuilt))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])
    assert 0 == counts[0] < counts[1] < counts[2]


def test_each_distinct_prompt_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = shared_model("qwen3"), []
    forward = model.forward

    def watched(*args: object, **options: torch.Tensor) -> object:
        sizes.append(tuple(options["input_ids"].shape))
        return forward(*args, **options)

    sampler = sampler_of()
    responses_of(sampler.sample(REQUESTS[:1], LIMITS))
    monkeypatch.setattr(model, "forward", watched)
    responses_of(sampler.sample(REQUESTS, SamplingLimits(1.0, 1.0, 2)))
    assert sizes == [(len(PROMPTS), 5)]


@every_family
def test_greedy_takes_the_likeliest_token_whatever_the_temperature(family: str) -> None:
    found = responses_of(sampler_of(family).sample(REQUESTS[:5], SamplingLimits(0.3, 0.5, 8, is_greedy=True)))
    for request, response in zip(REQUESTS, found, strict=False):
        logprob_TV = logprobs_of(shared_model(family), Request(request.prompt_ids, response.token_ids))
        assert list(response.token_ids) == logprob_TV.argmax(dim=1).tolist()
        assert response.logprobs == pytest.approx(logprob_TV.amax(dim=1).tolist(), abs=1e-5)


def squared_distance(counts: Counter[int], expected_V: torch.Tensor) -> float:
    """Pearson's chi-square over tokens expected five times or more."""
    is_common_V = expected_V >= 5.0
    found_V = torch.tensor([float(counts[v]) for v in range(len(expected_V))], dtype=torch.float64)
    return float(((found_V - expected_V) ** 2 / expected_V)[is_common_V].sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_follow_the_tempered_distribution(temperature: float) -> None:
    num_samples, prompt = 4000, (1, 2, 3)
    requests = [SampleRequest(prompt, seed) for seed in range(num_samples)]
    responses = responses_of(sampler_of(batch_size=num_samples).sample(requests, SamplingLimits(temperature, 1.0, 1)))
    counts = Counter(response.token_ids[0] for response in responses)
    model, request = shared_model("qwen3"), Request(prompt, (0,))
    expected_V = num_samples * logprobs_of(model, request, temperature=temperature)[0].exp()
    wrong_V = num_samples * logprobs_of(model, request, temperature=2.0 * temperature)[0].exp()
    freedom = int((expected_V >= 5.0).sum()) - 1
    bound = freedom + 4.0 * math.sqrt(2.0 * freedom)
    assert squared_distance(counts, expected_V) < bound
    assert squared_distance(counts, wrong_V) > 1.5 * bound


@pytest.mark.parametrize("top_p", [0.3, 0.95])
def test_sampling_never_leaves_the_nucleus(top_p: float) -> None:
    responses = responses_of(sampler_of().sample(REQUESTS, SamplingLimits(1.0, top_p, 8)))
    num_outside_argmax = 0
    for request, response in zip(REQUESTS, responses, strict=True):
        logprob_TV = logprobs_of(shared_model("qwen3"), Request(request.prompt_ids, response.token_ids))
        for t, token in enumerate(response.token_ids):
            likelier = logprob_TV[t].exp()[logprob_TV[t] > logprob_TV[t, token]].sum()
            assert likelier < top_p
            num_outside_argmax += int(token) != int(logprob_TV[t].argmax())
        assert response.logprobs == pytest.approx(
            logprob_TV[range(8), list(response.token_ids)].tolist(), abs=1e-5
        )  # of the policy, not of the nucleus
    assert num_outside_argmax > 0 or top_p == 0.3


def chosen(probabilities: list[float], uniforms: list[float], *, top_p: float = 1.0) -> list[int]:
    probability_BV = torch.tensor(probabilities, dtype=torch.float64).expand(len(uniforms), -1)
    return choose(nucleus(probability_BV, top_p), torch.tensor(uniforms, dtype=torch.float64)).tolist()


def test_choice_inverts_the_cumulative_distribution() -> None:
    assert chosen([0.25, 0.5, 0.25], [0.0, 0.24, 0.26, 0.74, 0.76, 1 - 2**-53]) == [0, 0, 1, 1, 2, 2]


def test_token_without_probability_is_never_chosen() -> None:
    assert chosen([0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 0.49, 0.5, 1 - 2**-53]) == [1, 1, 3, 3]


def test_nucleus_is_the_smallest_set_that_holds_top_p() -> None:
    probabilities = [0.1, 0.4, 0.2, 0.3]  # by size: 1, 3, 2, 0
    grid = [n / 100 for n in range(100)]
    assert set(chosen(probabilities, grid, top_p=0.35)) == {1}
    assert set(chosen(probabilities, grid, top_p=0.65)) == {1, 3}
    assert set(chosen(probabilities, grid, top_p=0.75)) == {1, 2, 3}
    assert set(chosen(probabilities, grid, top_p=1e-9)) == {1}
    assert Counter(chosen(probabilities, grid, top_p=0.65)) == {1: 58, 3: 42}  # 4/7 and 3/7


@pytest.mark.parametrize(("size", "block"), [(1000, 128), (1024, 128), (1000, 7)])
def test_blocks_choose_what_the_plain_cumulative_distribution_chooses(
    size: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_sampler, "BLOCK", block)
    random = torch.Generator().manual_seed(0)
    probability_BV = (3 * torch.randn(2000, size, generator=random)).softmax(dim=1)
    uniform_B = torch.rand(2000, generator=random, dtype=torch.float64)
    cumulative_BV = probability_BV.double().cumsum(dim=1)
    exact_B = torch.searchsorted(cumulative_BV, (uniform_B * cumulative_BV[:, -1])[:, None], right=True)[:, 0]
    found_B = choose(probability_BV, uniform_B)
    gap_B = (cumulative_BV / cumulative_BV[:, -1:] - uniform_B[:, None]).abs().amin(dim=1)
    assert torch.equal(found_B[gap_B > 1e-6], exact_B[gap_B > 1e-6])
    assert int((gap_B > 1e-6).sum()) > 1980
    assert bool((probability_BV.gather(1, found_B[:, None]) > 0).all())


def test_nucleus_of_a_large_vocabulary_is_found_however_flat_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_sampler, "NUCLEUS", 2)  # then 16, 128 and all
    random = torch.Generator().manual_seed(0)
    for spread in (8.0, 2.0, 0.1):
        probability_V = (spread * torch.randn(200, generator=random)).softmax(dim=0)
        ordered_V, token_V = probability_V.sort(descending=True)
        inside = token_V[ordered_V.double().cumsum(0) - ordered_V < 0.9]
        uniforms = [n / 5000 for n in range(5000)]
        counts = Counter(chosen(probability_V.tolist(), uniforms, top_p=0.9))
        assert set(counts) <= set(inside.tolist())
        share = float(probability_V[inside[0]] / probability_V[inside].sum())
        assert abs(counts[int(inside[0])] - 5000 * share) < 2


@every_family
def test_requests_own_limit_and_further_stops_cut_the_same_response_sooner(family: str) -> None:
    stop = frequent(family)[0]
    own = [None if n % 3 == 0 else 1 + n % 9 for n in range(len(REQUESTS))]
    requests = [replace(request, max_tokens=most) for request, most in zip(REQUESTS, own, strict=True)]
    found = responses_of(sampler_of(family).sample(requests, LIMITS, stop_ids={stop}))
    expected = []
    for response, most in zip(unending(family), own, strict=True):
        ids = response.token_ids[:most]
        is_stopped = stop in ids
        ids = ids[: ids.index(stop) + 1] if is_stopped else ids
        expected.append(Response(ids, response.logprobs[: len(ids)], "stop" if is_stopped else "length"))
    assert_same(found, expected)
    assert {response.finish_reason for response in found} == {"stop", "length"}


@pytest.mark.parametrize("size", [30, 128, 300])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_probabilities_that_are_no_numbers_still_give_a_token(size: int, top_p: float) -> None:
    """Training that diverged is reported by the learner; the sampler must not fail before."""
    probability_BV = nucleus(torch.full((2, size), torch.nan), top_p)
    token_B = choose(probability_BV, torch.tensor([0.0, 0.7], dtype=torch.float64))
    assert ((token_B >= 0) & (token_B < size)).all()
