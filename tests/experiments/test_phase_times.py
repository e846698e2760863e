"""The arithmetic of phase times, by hand, and the goal of issue 21 that it is for."""

from __future__ import annotations

import pytest

from experiments import phase_times, scaling
from experiments.phase_times import (
    ALL_CHANGES,
    CHANGES,
    NO_CHANGES,
    Rates,
    handovers,
    num_checkpoints,
    stated_rates,
    table1,
    total_occupied_hours,
    training_times,
)
from experiments.planner import RateConfig
from flows.planning.compose import compose
from hacpo_core.config import ExperimentConfig
from hacpo_core.engines.models.memory import ModelShape

pytestmark = pytest.mark.slow

ANSWERS = 500 + 5000 + 1319 + 30 * 30 + 40 + 272 + 675
"""of an agent in its last evaluation; AIME is asked 30 times"""
PAIR = ("qwen3-1.7b-base", "qwen3-4b-base")
SIMPLE = Rates(
    RateConfig(1000, sampled_tokens_per_gpu_s=1000, trained_tokens_per_gpu_s=500, source="by hand", billions=1),
    disk=1e9,
    shared_memory=2e9,
    load=4e9,
    handover_s=3.0,
    sha256=5e8,
    pcie=1e10,
    gpu_memory=1e12,
    verified=16.0,
    fingerprint=100.0,
    offloaded=(2.0, 126.0),
)


def shape(billions: int) -> ModelShape:
    return ModelShape(billions * 10**9, 10, 1000, 1000, 500, 3000, vocab_size=151_936)


@pytest.fixture
def two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair's models have one and four billion parameters, and a width of 1,000."""
    monkeypatch.setattr(
        phase_times, "published_shapes", lambda config: {k: shape(1 if k == PAIR[0] else 4) for k in config.pair.agents}
    )


def config_of(*words: str, hardware: str = "eight_gpus") -> ExperimentConfig:
    return compose("+".join(PAIR), "hacpo", hardware=hardware, overrides=list(words))


@pytest.mark.usefixtures("two_sizes")
def test_phases_of_one_agent_by_hand() -> None:
    four = "placement.num_ranks=4"
    before = training_times(config_of(four), SIMPLE, NO_CHANGES).agents[PAIR[0]]
    after = training_times(config_of(four, "engine.logprob_chunk_mb=1024"), SIMPLE).agents[PAIR[0]]
    assert before.rollout == after.rollout == 128 * 8 * 1000 / (4 * 1000) == 256
    assert before.score == 1_024_000 / (4 * 4 * 500) == 128
    assert after.score == 3 * 128, "own rows, and then own and the other's in the passes that train"
    assert before.handover == 4 * 2 + 2 / 4 + 3, "four copies of 2 GB on the disk, one read into each engine"
    assert after.handover == 1 + 2 / 4 + 3
    # 64 MiB hold the logits of 110 tokens, 1,024 MiB those of 1,766; each agent trains on both agents' responses.
    head = 12 * 151_936 * 1000 * (2_048_000 / 4) / 1e12
    assert before.update == pytest.approx(2_048_000 / (4 * 500) + head / 110 + 4 / 0.5)
    assert after.update == pytest.approx(2_048_000 / (4 * 500) + head / 1766 + 0.1)
    assert before.checkpoint == 14 + 14 / 0.5
    assert after.checkpoint == 2 + 2 / 0.5 + 12 / 0.5
    assert before.evaluation == pytest.approx(ANSWERS * 1000 / 4000 + 35 * before.handover)
    assert after.evaluation == pytest.approx(ANSWERS * 1000 / 4000 + after.handover)


@pytest.mark.usefixtures("two_sizes")
def test_larger_models_sample_by_the_root_and_train_in_proportion() -> None:
    small, large = training_times(config_of("placement.num_ranks=4"), SIMPLE).agents.values()
    assert (large.rollout, large.score) == (2 * small.rollout, 4 * small.score)


@pytest.mark.usefixtures("two_sizes")
def test_offloaded_gradients_cross_to_the_host_in_every_pass_at_stage_two() -> None:
    found = [
        training_times(config_of(hardware="one_gpu"), SIMPLE, done).agents[PAIR[0]] for done in ({"stage"}, NO_CHANGES)
    ]
    one, two = (times.update for times in found)
    assert two - one == pytest.approx(4 * 124 * 1e9 / 1e10), "four updates of a step"
    assert found[0].handover == 0.0, "the sampler has the learner's weights"


@pytest.mark.usefixtures("two_sizes")
def test_agents_side_by_side_wait_for_the_slower_one_and_others_take_turns() -> None:
    beside = training_times(config_of("placement.num_ranks=4"), SIMPLE)
    slow = max(times.step for times in beside.agents.values())
    verifying = 2 * 128 * 8 / (config_of().verifier.num_workers * 16)
    assert beside.step_s == pytest.approx(slow + verifying)
    answers = 2 * ANSWERS + 5 * 500  # of each agent, before and after training and on the way
    evaluated = max(times.evaluations for times in beside.agents.values()) + verifying * answers / (128 * 8)
    saved = 6 * sum(times.checkpoint for times in beside.agents.values())
    assert beside.hours * 3600 == pytest.approx(58 * beside.step_s + evaluated + saved)
    assert (beside.num_gpus, beside.occupied_hours) == (8, 8 * beside.hours)
    config = config_of(hardware="one_gpu_vllm")
    in_turn = training_times(config, SIMPLE)
    both = sum(times.step for times in in_turn.agents.values())
    assert in_turn.step_s == pytest.approx(both + 2 * 128 * 8 / (config.verifier.num_workers * 16))


def test_weights_are_handed_over_for_a_version_and_not_for_a_shard() -> None:
    assert handovers(config_of("evaluate.shard_problems=256"), NO_CHANGES) == [35, 2, 2, 2, 2, 2, 35]
    assert handovers(config_of(), ALL_CHANGES) == [0, 0, 0, 0, 0, 0, 1], "the next step samples from the same weights"
    assert handovers(config_of(hardware="one_gpu_vllm"), ALL_CHANGES) == [1] * 7, (
        "the other agent has the GPU in between"
    )
    assert num_checkpoints(config_of()) == 6


def test_training_of_one_agent_held_eight_gpus_and_holds_four() -> None:
    alone = [one for one in table1("eight_gpus") if len(one.pair.agents) == 1]
    assert len(alone) == 15
    rates = stated_rates()
    assert {training_times(one, rates, NO_CHANGES).num_gpus for one in alone} == {8}
    assert {training_times(one, rates, ALL_CHANGES).num_gpus for one in alone} == {4}


def test_table_1_occupies_at_most_three_fifths_of_the_hours_before() -> None:
    configs, rates = table1("eight_gpus"), stated_rates()
    assert len(configs) == 21
    assert total_occupied_hours(configs, rates, ALL_CHANGES) <= 0.6 * total_occupied_hours(configs, rates, NO_CHANGES)
    assert {change.name for change in CHANGES} == ALL_CHANGES


def test_page_holds_the_tables_that_these_modules_make() -> None:
    page = scaling.PAGE.read_text(encoding="utf-8")
    for module, begin, end, tables in (
        (scaling, scaling.MEMORY_BEGIN, scaling.MEMORY_END, scaling.memory_tables()),
        (phase_times, phase_times.PHASES_BEGIN, phase_times.PHASES_END, phase_times.phase_tables()),
    ):
        written = page.partition(begin)[2].partition(end)[0].strip()
        assert written == tables, f"python -m {module.__name__} writes the page anew"
