"""vLLM's own engine on the CPU: the policy's log-probabilities, seeds, ends of responses, weights, failures.

`make test-vllm` installs it and runs these. Shapes: V vocabulary.
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.config import EngineConfig, LoraConfig, OptimizerConfig, RolloutConfig, TinyModelConfig, VllmConfig
from hacpo_core.engines.learning.torch_learner import TorchLearner
from hacpo_core.engines.models.lora import add_adapters, merged_parts
from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.sampling.base import SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.engines.vllm import exchange
from hacpo_core.engines.vllm import sampler as vllm_sampler
from hacpo_core.engines.vllm.exchange import Place
from hacpo_core.engines.vllm.sampler import VllmSampler
from hacpo_core.errors import EngineError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import SamplingLimits
from hacpo_core.store.steps import StepStore
from hacpo_core.tiny.models import build_model
from hacpo_core.tiny.tokenizers import build_tokenizer
from tests.engines.sampling.test_transformers_sampler import squared_distance
from tests.engines.small import TOKENIZER, Request, Response, logprobs_of, responses_of, scored
from tests.experiments_outcome import outcome

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here; make test-vllm"),
]


@pytest.fixture(autouse=True, scope="module")
def prepared() -> None:
    """Python's own child process, which stays, is made before a test counts children."""
    resource_tracker.ensure_running()


EOS_IDS = (2, 3)
LIMITS = SamplingLimits(temperature=1.0, top_p=1.0, max_tokens=20)
REQUESTS = [SampleRequest((1, 4, 5 + n % 3), seed=2**63 + n) for n in range(40)]
MAX_TOKENS = 320
VLLM = VllmConfig(kv_cache_gb=0.25, enforce_eager=True)


def model_of(
    family: str, *, num_heads: int = 2, num_kv_heads: int = 1, tokenizer: PreTrainedTokenizerFast = TOKENIZER
) -> PreTrainedModel:
    """Heads of 32, which vLLM's kernels for the CPU know, and distributions far from uniform."""
    config = TinyModelConfig(
        family=family,
        hidden_size=32 * num_heads,
        num_layers=2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        max_positions=MAX_TOKENS,
    )
    model = build_model(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model.eval()


def sampler_of(
    model: PreTrainedModel,
    folder: Path,
    *,
    vllm: VllmConfig = VLLM,
    top_p: float = 1.0,
    max_tokens: int = MAX_TOKENS,
    eos_ids: tuple[int, ...] = EOS_IDS,
) -> VllmSampler:
    model.save_pretrained(folder)
    return VllmSampler(
        model,
        initial=folder,
        engine=EngineConfig(sampler="vllm", vllm=vllm),
        rollout=RolloutConfig(top_p=top_p, batch_size=64),
        max_tokens=max_tokens,
        eos_ids=eos_ids,
    )


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmSampler]:
    sampler = sampler_of(model_of(request.param), tmp_path_factory.mktemp(request.param))
    yield sampler
    sampler.close()


def nothing() -> None:
    """A check that always passes."""


def error_of(
    sampler: VllmSampler,
    responses: list[Response],
    *,
    temperature: float = 1.0,
    requests: list[SampleRequest] = REQUESTS,
) -> float:
    """Largest difference between the responses' log-probabilities and the learner's."""
    learner = TorchLearner(
        sampler.model, optimizer=OptimizerConfig(), engine=EngineConfig(), temperature=temperature, total_updates=1
    )
    learned_scores = scored(
        learner, [Request(q.prompt_ids, r.token_ids) for q, r in zip(requests, responses, strict=True)]
    )
    sampled = [logprob for response in responses for logprob in response.logprobs]
    learned = [logprob for logprobs in learned_scores for logprob in logprobs]
    return max(abs(a - b) for a, b in zip(sampled, learned, strict=True))


def test_every_variable_that_is_set_for_vllm_is_one_of_its_own() -> None:
    import vllm.envs

    source = Path(vllm_sampler.__file__).read_text("utf-8")
    names = set(re.findall(r'"(VLLM_[A-Z_]+)"', source))
    assert len(names) > 4
    assert names <= set(vllm.envs.environment_variables)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_reported_logprobs_are_those_of_the_learner(engine: VllmSampler, temperature: float) -> None:
    responses = responses_of(engine.sample(REQUESTS, SamplingLimits(temperature, 1.0, 20)))
    assert error_of(engine, responses, temperature=temperature) < 1e-5
    assert error_of(engine, responses, temperature=2 * temperature) > 0.1


def test_sampling_keys_of_the_folders_generation_config_change_nothing(tmp_path: Path) -> None:
    """As in prime-rl's issue 886, where a folder's repetition penalty was sampled with and not trained with."""
    model = model_of("qwen3")
    plain, penalised = tmp_path / "plain", tmp_path / "penalised"
    found = []
    for folder in (plain, penalised):
        if folder == penalised:
            keys = {"repetition_penalty": 3.0, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "do_sample": True}
            model.generation_config.update(**keys)
        sampler = sampler_of(model, folder)
        assert ("repetition_penalty" in (folder / "generation_config.json").read_text()) == (folder == penalised)
        try:
            found.append(responses_of(sampler.sample(REQUESTS, LIMITS)))
            assert error_of(sampler, found[-1]) < 1e-5
        finally:
            sampler.close()
    assert [one.token_ids for one in found[0]] == [one.token_ids for one in found[1]]


def test_same_seed_gives_the_same_response_in_any_batch_and_order(engine: VllmSampler) -> None:
    expected = responses_of(engine.sample(REQUESTS, LIMITS))
    parts = [r for start in range(0, 40, 7) for r in responses_of(engine.sample(REQUESTS[start : start + 7], LIMITS))]
    backwards = responses_of(engine.sample(REQUESTS[::-1], LIMITS))[::-1]
    alone = [responses_of(engine.sample([request], LIMITS))[0] for request in REQUESTS[:5]]
    tokens = [response.token_ids for response in expected]
    assert [response.token_ids for response in parts] == tokens
    assert [response.token_ids for response in backwards] == tokens
    assert [response.token_ids for response in alone] == tokens[:5]
    assert len(set(tokens)) > 30


def test_cache_that_is_too_small_shows_in_the_figures(engine: VllmSampler, tmp_path: Path) -> None:
    roomy = engine.sample(REQUESTS, LIMITS).figures
    assert roomy["vllm/cache_tokens"] > 40 * MAX_TOKENS
    assert roomy["vllm/preemptions"] == 0
    small = VllmConfig(kv_cache_gb=0.0006, enforce_eager=True)
    sampler = sampler_of(model_of("qwen3"), tmp_path, vllm=small, eos_ids=())
    try:
        sampler.sample(REQUESTS[:1], LIMITS)  # the first call warms up
        start = time.monotonic()
        figures = sampler.sample(REQUESTS[:16], replace(LIMITS, max_tokens=280)).figures
        seconds = time.monotonic() - start
    finally:
        sampler.close()
    assert figures["vllm/cache_tokens"] < 5 * MAX_TOKENS
    assert figures["vllm/preemptions"] > 0
    assert figures["time/vllm_waiting_s"] > 0.2 * seconds  # for those that came before


def test_end_of_sequence_is_part_of_the_response_whichever_id_it_is(engine: VllmSampler) -> None:
    ends: Counter[int | None] = Counter()
    for response in responses_of(engine.sample(REQUESTS, LIMITS)):
        inside = [token for token in response.token_ids[:-1] if token in EOS_IDS]
        is_ended = response.token_ids[-1] in EOS_IDS
        assert not inside
        assert response.finish_reason == ("stop" if is_ended else "length")
        assert len(response.logprobs) == len(response.token_ids) == (len(response.token_ids) if is_ended else 20)
        ends[response.token_ids[-1] if is_ended else None] += 1
    assert ends.keys() >= {*EOS_IDS, None}


def test_requests_own_limit_and_further_stops_cut_the_same_response_sooner(engine: VllmSampler) -> None:
    whole = responses_of(engine.sample(REQUESTS, LIMITS))
    stop = Counter(token for response in whole for token in set(response.token_ids[:8])).most_common(1)[0][0]
    own = [None if n % 3 == 0 else 1 + n % 9 for n in range(len(REQUESTS))]
    requests = [replace(request, max_tokens=most) for request, most in zip(REQUESTS, own, strict=True)]
    found = responses_of(engine.sample(requests, LIMITS, stop_ids={stop, 0}))
    for response, one, most in zip(whole, found, own, strict=True):
        ids = response.token_ids[:most]
        places = [place for place, token in enumerate(ids) if token in (stop, 0, *EOS_IDS)]
        assert one.token_ids == (ids[: places[0] + 1] if places else ids)
        assert one.finish_reason == ("stop" if places else "length")


def test_greedy_is_the_transformers_samplers_greedy(engine: VllmSampler) -> None:
    limits = SamplingLimits(0.3, 0.5, 20, is_greedy=True)
    expected = responses_of(
        TransformersSampler(engine.model, eos_ids=EOS_IDS, pad_id=0, batch_size=64).sample(REQUESTS, limits)
    )
    for one, other in zip(responses_of(engine.sample(REQUESTS, limits)), expected, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_frequencies_follow_the_tempered_distribution(engine: VllmSampler) -> None:
    num_samples, prompt = 2000, (1, 4, 5)
    requests = [SampleRequest(prompt, seed) for seed in range(num_samples)]
    counts = Counter(r.token_ids[0] for r in responses_of(engine.sample(requests, SamplingLimits(0.5, 1.0, 1))))
    expected_V, wrong_V = (
        num_samples * logprobs_of(engine.model, Request(prompt, (0,)), temperature=temperature)[0].exp()
        for temperature in (0.5, 1.0)
    )
    freedom = int((expected_V >= 5.0).sum()) - 1
    bound = freedom + 4.0 * math.sqrt(2.0 * freedom)
    assert squared_distance(counts, expected_V) < bound
    assert squared_distance(counts, wrong_V) > 1.5 * bound


def change(model: PreTrainedModel) -> None:
    """What an update does to the weights, much exaggerated; the tied head and the norms change too."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def test_weights_are_the_learners_after_a_hand_over_and_not_before(engine: VllmSampler) -> None:
    change(engine.model)
    assert error_of(engine, responses_of(engine.sample(REQUESTS, LIMITS))) > 0.1
    checked: list[int] = []
    engine.synchronise(1, lambda: checked.append(1))
    assert error_of(engine, responses_of(engine.sample(REQUESTS, LIMITS))) < 1e-5
    engine.synchronise(1, lambda: checked.append(2))
    assert checked == [1]


def test_cache_of_a_long_prompt_is_forgotten_with_the_old_weights(
    engine: VllmSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = SampleRequest(tuple(4 + n % 20 for n in range(300)), seed=3)

    def error() -> float:
        (response,) = responses_of(engine.sample([request], SamplingLimits(1.0, 1.0, 1)))
        scored = logprobs_of(engine.model, Request(request.prompt_ids, response.token_ids))
        return abs(float(scored[0, response.token_ids[0]]) - response.logprobs[0])

    engine.synchronise(3, nothing)
    assert error() < 1e-5
    change(engine.model)
    with monkeypatch.context() as patch:
        patch.setattr(engine.llm, "reset_prefix_cache", lambda: True)
        engine.synchronise(4, nothing)
        assert error() > 1e-3  # so the cache is used, and the reset below is what makes the difference
    engine.synchronise(5, nothing)
    assert error() < 1e-5


def test_prompt_that_leaves_no_room_names_the_field(engine: VllmSampler) -> None:
    with pytest.raises(EngineError, match=r"a prompt of 310 tokens and a response of 20 .*; raise rollout.max_prompt_"):
        responses_of(engine.sample([SampleRequest((1,) * 310, 1)], LIMITS))


def test_nucleus_at_temperature_1_reports_the_policy_and_other_limits_report_nothing(tmp_path: Path) -> None:
    sampler = sampler_of(model_of("qwen3"), tmp_path, top_p=0.5)
    try:
        filtered = responses_of(sampler.sample(REQUESTS, SamplingLimits(1.0, 0.5, 20)))
        assert error_of(sampler, filtered) < 1e-5
        for request, response in zip(REQUESTS, filtered, strict=True):
            logprob_TV = logprobs_of(sampler.model, Request(request.prompt_ids, response.token_ids))
            for t, token in enumerate(response.token_ids):
                assert logprob_TV[t].exp()[logprob_TV[t] > logprob_TV[t, token]].sum() < 0.5 + 1e-5
        (unknown,) = responses_of(sampler.sample(REQUESTS[:1], SamplingLimits(0.6, 1.0, 3)))
        assert all(math.isnan(logprob) for logprob in unknown.logprobs)
    finally:
        sampler.close()


@pytest.mark.parametrize(
    ("vllm", "max_tokens", "message"),
    [
        (VllmConfig(kv_cache_gb=1e4, enforce_eager=True), 80, "vLLM: the engine did not start: .*engine.vllm.kv_cache"),
        (VllmConfig(memory_share=1.0, enforce_eager=True), 80, "vLLM: the engine did not start: .*engine.vllm.memory"),
        (VLLM, 4 * MAX_TOKENS, "vLLM: the engine did not start: .*lower rollout.max_prompt_tokens"),
    ],
)
def test_start_that_fails_is_one_error_that_names_the_field(
    vllm: VllmConfig, max_tokens: int, message: str, tmp_path: Path
) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(EngineError, match=message) as caught:
        sampler_of(model_of("qwen3"), tmp_path, vllm=vllm, max_tokens=max_tokens)
    assert "\n" not in str(caught.value)
    assert psutil.Process().children(recursive=True) == before


def test_engine_in_processes_of_its_own_gets_weights_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    sampler = sampler_of(model_of("qwen3"), tmp_path)
    try:
        assert set(psutil.Process().children(recursive=True)) - before
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 1e-5
        change(sampler.model)
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) > 0.1
        sampler.synchronise(1, nothing)
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 1e-5
        change(sampler.model)
        sampler.synchronise(2, nothing)
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 1e-5
    finally:
        sampler.close()
    assert set(psutil.Process().children(recursive=True)) == before


def test_layer_that_comes_in_several_halves_is_the_learners_after_a_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "HALF_BYTES", 1)  # then the largest tensor decides
    sampler = sampler_of(model_of("qwen3"), tmp_path)
    fill, halves = sampler.bucket.fill, list[list[str]]()

    def noted(weights: Iterator[TensorPart]) -> Iterator[list[Place]]:
        for places in fill(weights):
            halves.append([place.name for place in places])
            yield places

    monkeypatch.setattr(sampler.bucket, "fill", noted)
    try:
        change(sampler.model)
        sampler.synchronise(1, nothing)
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 1e-5
    finally:
        sampler.close()
    half_of = {name: n for n, names in enumerate(halves) for name in names}
    assert list(half_of) == [name for name, _ in sampler.model.named_parameters()]
    gate, up = (half_of[f"model.layers.1.mlp.{kind}_proj.weight"] for kind in ("gate", "up"))
    assert up == gate + 1 > 4, "in the engine they are one layer"


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed here; make test-vllm")
def test_adapters_are_handed_over_merged_and_the_base_stays_as_it_was(tmp_path: Path) -> None:
    model = model_of("qwen3")
    sampler = sampler_of(model, tmp_path)
    try:
        add_adapters(model, LoraConfig(rank=4), seed_parts=(0,))
        sampler.synchronise(1, nothing)
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 1e-5
        base = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".lora_" not in name}
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=random))
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) > 0.1
        sampler.synchronise(2, nothing)
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 1e-4
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in base.items())
    finally:
        sampler.close()


def test_head_of_a_bf16_model_multiplies_in_bf16_as_the_learners(tmp_path: Path) -> None:
    model = model_of("qwen3").bfloat16()
    model.save_pretrained(tmp_path)
    sampler = VllmSampler(
        model,
        initial=tmp_path,
        engine=EngineConfig(sampler="vllm", dtype="bfloat16", vllm=VLLM),
        rollout=RolloutConfig(batch_size=64),
        max_tokens=MAX_TOKENS,
        eos_ids=EOS_IDS,
    )
    try:
        assert sampler.llm.model_config.head_dtype == torch.bfloat16
        assert error_of(sampler, responses_of(sampler.sample(REQUESTS, LIMITS))) < 0.1
    finally:
        sampler.close()


ON_TWO = VllmConfig(kv_cache_gb=0.25, enforce_eager=True, tensor_parallel_size=2)
needs_two_processors = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor cannot hold two ranks")


@needs_two_processors
@pytest.mark.parametrize("num_kv_heads", [1, 2])  # the same for both ranks, or one each
def test_engine_over_two_ranks_agrees_with_the_learner_before_and_after_a_hand_over(
    num_kv_heads: int, tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))
    tokenizer = build_tokenizer("merged")
    model = model_of("qwen3", num_kv_heads=num_kv_heads, tokenizer=tokenizer)
    share = 32  # vocabulary of one rank, half of 51 rounded up to 64
    requests = [SampleRequest((1, 4, share + n % 19), seed=n) for n in range(40)]
    sampler = sampler_of(model, tmp_path, vllm=ON_TWO)
    try:
        sampled = responses_of(sampler.sample(requests, LIMITS))
        assert {token >= share for response in sampled for token in response.token_ids} == {False, True}
        assert error_of(sampler, sampled, requests=requests) < 1e-5
        change(model)
        assert error_of(sampler, responses_of(sampler.sample(requests, LIMITS)), requests=requests) > 0.1
        sampler.synchronise(1, nothing)
        assert error_of(sampler, responses_of(sampler.sample(requests, LIMITS)), requests=requests) < 1e-5
    finally:
        sampler.close()
    assert set(psutil.Process().children(recursive=True)) == before


def hold(folder: str, num_ranks: int) -> None:
    """Keep an engine in processes of its own until this process is killed."""
    sampler_of(model_of("qwen3"), Path(folder), vllm=replace(ON_TWO, tensor_parallel_size=num_ranks))
    print("ready", flush=True)
    time.sleep(600)


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=needs_two_processors)])
def test_engines_processes_end_when_their_owner_is_killed(num_ranks: int, tmp_path: Path) -> None:
    words = [sys.executable, "-c", f"from {__name__} import hold; hold({str(tmp_path)!r}, {num_ranks})"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert any(line == "ready\n" for line in iter(owner.stdout.readline, ""))
        processes = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
    _, alive = psutil.wait_procs(processes, timeout=30)
    for process in alive:
        process.kill()
    assert len(processes) >= num_ranks + 1
    assert alive == []


HEADS_OF_32 = [
    f"pair.agents.{agent}.tiny.{size}"
    for agent in ("qwen", "llama")
    for size in ("hidden_size=64", "num_heads=2", "num_kv_heads=1")
]
SAMPLED_BY_VLLM = (
    *HEADS_OF_32,
    "engine.sampler=vllm",
    "engine.vllm.kv_cache_gb=0.25",
    "engine.vllm.enforce_eager=true",
)


def test_experiment_trains_and_its_sampler_stays_with_its_learner(small_plan: Callable[..., Plan]) -> None:
    before = psutil.Process().children(recursive=True)
    planned = small_plan("hacpo", *SAMPLED_BY_VLLM)
    run_experiment(planned, DirectRunner())
    found = outcome(planned)
    for agent in ("qwen", "llama"):
        digests = [found[f"{step} update.{agent}"] for step in (1, 2, 3, 4)]
        assert len(set(digests)) == 4
        metrics = [found[f"{step} {agent}"] for step in (1, 2, 3, 4)]
        name = "sampler/logprob_difference_mean"  # of a step with own rows in its updates
        assert max(values[name] for values in metrics if name in values) < 1e-4
        assert [values["vllm/preemptions"] for values in metrics] == [0] * 4
    assert psutil.Process().children(recursive=True) == before


def test_experiment_that_was_interrupted_goes_on_with_the_same_bits(small_plan: Callable[..., Plan]) -> None:
    whole = small_plan("hacpo", *SAMPLED_BY_VLLM, "train.num_steps=3")
    run_experiment(whole, DirectRunner())

    class Interrupted(DirectRunner):
        def start(self, phase: Any, work: Any, *, after: Any = ()) -> Any:
            if (phase.kind, phase.step, phase.agent) == ("update", 2, "llama"):
                raise KeyboardInterrupt
            return super().start(phase, work, after=after)

    parted = small_plan("hacpo", *SAMPLED_BY_VLLM, "train.num_steps=3", runs_dir=whole.root.parents[2] / "parted")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(parted, Interrupted())
    run_experiment(parted, DirectRunner())
    assert outcome(parted) == outcome(whole)


def test_hand_over_of_wrong_weights_stops_the_run(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = psutil.Process().children(recursive=True)
    planned = small_plan("hacpo", *SAMPLED_BY_VLLM)

    def too_large(*arguments: Any) -> Iterator[TensorPart]:
        return (replace(part, read=lambda part=part: 1.1 * part.read()) for part in merged_parts(*arguments))

    monkeypatch.setattr(vllm_sampler, "merged_parts", too_large)
    message = r"agent qwen: after the transfer of weights version 0, .* vllm and the learner differ by .* nats"
    with pytest.raises(EngineError, match=message):
        run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    assert not [phase for step in (0, 1) for phase in store.committed(step)]
    assert psutil.Process().children(recursive=True) == before
