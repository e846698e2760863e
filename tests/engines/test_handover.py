"""The check after a hand-over of weights, and how often weights are handed over."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from flows.planning.plans import Plan, plan
from flows.runs.experiment import run_experiment
from hacpo_core.columns import Ragged, TokenRows
from hacpo_core.config import EngineConfig, ExperimentConfig, RolloutConfig, VllmConfig
from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.engines.vllm.sampler import VllmSampler
from hacpo_core.errors import EngineError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement import agents
from hacpo_core.placement.agents import Agent
from hacpo_core.records import SamplingLimits

PROMPTS = [(1, number) for number in range(128)]
BF16 = VllmConfig(sync_tolerance=0.05)


class FakeSampler:
    """Answers with as many tokens as asked for, or fewer; its log-probabilities are off by what it is given."""

    name = "fake"

    def __init__(self, differences: Callable[[int], Sequence[float]], *, length: int) -> None:
        self.differences, self.length = differences, length
        self.seeds: list[int] = []
        self.num_tokens = 0

    def sample(self, requests: Sequence[SampleRequest], limits: SamplingLimits) -> Sampled:
        self.seeds += [request.seed for request in requests]
        length = min(self.length, limits.max_tokens)
        self.num_tokens += length * len(requests)
        return Sampled.of([([5] * length, [-1.0 + d for d in self.differences(length)], True) for _ in requests])


class FakeLearner:
    def logprobs_of_each(self, rows: TokenRows) -> Ragged:
        return Ragged(np.full(len(rows.responses.value_N), -1.0, np.float32), rows.responses.edge)


def agent_with(differences: Callable[[int], Sequence[float]], *, vllm: VllmConfig = BF16, length: int = 64) -> Agent:
    agent = object.__new__(Agent)
    agent.config = ExperimentConfig(engine=EngineConfig(sampler="vllm", vllm=vllm), rollout=RolloutConfig())
    agent.name, agent.version = "qwen", 7
    sampler: Any = FakeSampler(differences, length=length)
    learner: Any = FakeLearner()
    agent.sampler, agent.learner = sampler, learner
    return agent


def published_noise(random: np.random.Generator) -> Callable[[int], Sequence[float]]:
    """vLLM against a trainer in bfloat16: standard deviation 0.05, a maximum near 0.5 in some 4,000 tokens."""

    def draw(length: int) -> Sequence[float]:
        tail = np.where(random.random(length) < 1e-3, random.uniform(0.3, 0.5, length), 0.0)
        return list(random.normal(0.0, 0.045, length) + tail)

    return draw


def test_published_noise_of_bfloat16_passes_a_thousand_checks() -> None:
    agent = agent_with(published_noise(np.random.default_rng(0)))
    for _ in range(1000):
        agent.check_sampler(PROMPTS)


@pytest.mark.parametrize("offset", [0.06, -0.06, float("nan")])
def test_mean_over_the_tolerance_stops_the_run(offset: float) -> None:
    with pytest.raises(
        EngineError, match=r"weights version 7, .* on average over 256 tokens.*expected at most 0.05 and 2"
    ):
        agent_with(lambda length: [offset] * length).check_sampler(PROMPTS)


def test_single_token_over_the_bound_stops_the_run_and_one_below_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineError, match=r"2.1e\+00 at most"):
        agent_with(lambda length: [2.1] + [0.0] * (length - 1)).check_sampler(PROMPTS)
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        agent_with(lambda length: [0.4] + [0.0] * (length - 1)).check_sampler(PROMPTS)
        assert not caplog.text, "ten times the tolerated mean is nothing to speak of"
        agent_with(lambda length: [0.6] + [0.0] * (length - 1)).check_sampler(PROMPTS)
    assert "6.0e-01 at most" in caplog.text


@pytest.mark.parametrize(("length", "at_least", "at_most"), [(64, 256, 256), (20, 256, 320), (1, 64, 64)])
def test_enough_tokens_are_compared_however_short_responses_are(length: int, at_least: int, at_most: int) -> None:
    agent = agent_with(lambda n: [0.0] * n, length=length)
    agent.check_sampler(PROMPTS)
    assert at_least <= agent.sampler.num_tokens <= at_most  # type: ignore[attr-defined]


def test_no_two_checks_ask_for_the_same_responses() -> None:
    first, second = agent_with(lambda n: [0.0] * n), agent_with(lambda n: [0.0] * n)
    first.check_sampler(PROMPTS)
    second.check_sampler(PROMPTS)  # the retry, in a process of its own
    seeds = [*first.sampler.seeds, *second.sampler.seeds]  # type: ignore[attr-defined]
    assert len(set(seeds)) == len(seeds)


class Engine:
    """Goes to sleep as vLLM's engine on a device on which others take memory a number of times."""

    def __init__(self, num_taken: int) -> None:
        self.num_taken, self.levels = num_taken, list[int]()

    def sleep(self, level: int) -> None:
        self.levels.append(level)
        if len(self.levels) <= self.num_taken:
            raise AssertionError("Memory usage increased after sleeping.")


def resting(num_taken: int) -> tuple[VllmSampler, Engine]:
    sampler, engine = object.__new__(VllmSampler), Engine(num_taken)
    sampler.llm, sampler._can_sleep, sampler._is_resting, sampler._version = engine, True, False, 3
    return sampler, engine


def test_engine_beside_a_growing_process_sleeps_at_the_second_attempt(caplog: pytest.LogCaptureFixture) -> None:
    sampler, engine = resting(1)
    sampler.rest()
    assert engine.levels == [2, 1], "a second time at level 2, vLLM would read memory that it has released"
    assert sampler._is_resting and sampler._version is None
    assert "free memory shrank" in caplog.text


def test_engine_that_cannot_sleep_is_an_error() -> None:
    sampler, engine = resting(2)
    with pytest.raises(EngineError, match="did not go to sleep: Memory usage increased"):
        sampler.rest()
    assert engine.levels == [2, 1] and not sampler._is_resting


class SleepingSampler(TransformersSampler):
    """As vLLM's: holds a copy of the weights, which `rest` drops; counts what happens to it."""

    events: ClassVar[Counter[str]] = Counter()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held: int | None = None
        self.is_awake = False

    def synchronise(self, version: int, check: Callable[[], None]) -> None:
        if self.held != version:
            self.events["hand-overs"] += 1
            self.held, self.is_awake = version, True

    def sample(self, requests: Sequence[SampleRequest], limits: SamplingLimits) -> Sampled:
        assert self.is_awake, "asked while it slept"
        self.events["samplings"] += 1
        return super().sample(requests, limits)

    def rest(self) -> None:
        self.events["rests"] += self.is_awake
        self.held, self.is_awake = None, False


@pytest.mark.slow
@pytest.mark.parametrize(("shard_problems", "num_shards"), [(64, 1), (8, 4)])
def test_weights_are_handed_over_once_for_an_evaluation_whatever_its_shards(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, shard_problems: int, num_shards: int
) -> None:
    SleepingSampler.events = Counter()
    monkeypatch.setattr(agents, "TransformersSampler", SleepingSampler)
    words = ("train.num_steps=2", "evaluate.every=1", "evaluate.final=[dev]", "evaluate.benchmarks.dev.limit=32")
    monkeypatch.setattr("hacpo_core.evaluation.run.SHARD_PROBLEMS", shard_problems)
    planned = small_plan("hacpo", *words, "old_logprobs=sampler")
    run_experiment(planned, DirectRunner())
    # An evaluation before training, after step 1 and after step 2; a rollout in both steps; by each of two agents,
    # which share a device, so that each occasion begins with an agent that slept.
    assert SleepingSampler.events["samplings"] == 2 * (3 * num_shards + 2)
    assert SleepingSampler.events["hand-overs"] == 2 * (3 + 2)


@pytest.mark.slow
def test_agent_alone_samples_on_with_the_weights_that_it_was_evaluated_with(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    SleepingSampler.events = Counter()
    monkeypatch.setattr(agents, "TransformersSampler", SleepingSampler)
    words = ("train.num_steps=2", "evaluate.every=1", "evaluate.final=[dev]", "old_logprobs=sampler")
    planned = small_plan("gspo", *words)
    qwen = {"qwen": planned.config.pair.agents["qwen"]}
    alone = replace(planned.config, pair=replace(planned.config.pair, agents=qwen))
    run_experiment(plan(alone), DirectRunner())
    assert SleepingSampler.events["hand-overs"] == 3, "of versions 0, 1 and 2"


def test_sampler_sleeps_before_the_learner_scores_and_learns() -> None:
    events: list[str] = []
    agent = object.__new__(Agent)
    agent.config = ExperimentConfig()
    sampler: Any = SimpleNamespace(rest=lambda: events.append("rest"))
    learner: Any = SimpleNamespace(logprobs=lambda _, **__: events.append("score") or [])
    agent.sampler, agent.learner = sampler, learner
    nothing: Any = SimpleNamespace(prompt_ids=[], token_ids=[])
    agent.score(nothing)
    assert events == ["rest", "score"]
