"""Rules of a run's health, each with made-up histories: begins, ends, and says nothing just below the threshold."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from flows.planning.compose import compose
from hacpo_core.config import ExperimentConfig
from hacpo_core.phases.definitions import definition
from hacpo_core.phases.health import Finding, Health
from hacpo_core.phases.health_rules import EPS, RULES, Trend, Values

DEMO = Path(__file__).parent / "demo_histories.json"
REWARD = "reward/mean"
NOISE = (0.0, 0.004, -0.004, 0.002, -0.002)
"""added to rewards, over and over"""


def config_of(*overrides: str, method: str = "hacpo") -> ExperimentConfig:
    config: ExperimentConfig = compose("tiny", method, overrides=list(overrides))
    return config


def judge(steps: Iterable[tuple[int, Mapping[str, Values]]], config: ExperimentConfig) -> tuple[Finding, ...]:
    """Findings of steps that were never interrupted."""
    health = Health(config)
    for step, agents in steps:
        health.add(step, agents)
    return health.findings


def found_in(
    series: Mapping[str, Sequence[float]], *overrides: str, method: str = "hacpo", others: Sequence[str] = ()
) -> list[tuple[str, int, int | None]]:
    """Rule, beginning and end of the findings about agent a, whose metrics are given by name, a value per step."""
    num_steps = len(next(iter(series.values())))
    steps = [
        (step + 1, {"a": {name: values[step] for name, values in series.items()}, **{other: {} for other in others}})
        for step in range(num_steps)
    ]
    return [(f.rule, f.begun_at, f.ended_at) for f in judge(steps, config_of(*overrides, method=method))]


def noisy(*levels: tuple[float, int]) -> list[float]:
    """Rewards at each level for so many steps."""
    values = [level for level, number in levels for _ in range(number)]
    return [value + NOISE[place % len(NOISE)] for place, value in enumerate(values)]


def line(first: float, last: float, number: int) -> list[float]:
    return [first + (last - first) * place / (number - 1) for place in range(number)]


THREE_STEPS: list[tuple[str, dict[str, float], str, float, float]] = [
    ("cross_rows_stopped", {"ratio_cross/mean": 0.41}, "clip_cross/stopped_share", 0.95, 0.94),
    ("no_signal", {REWARD: 0.95}, "advantage/uniform_share", 0.9, 0.89),
    ("responses_cut", {}, "response/cut_share", 0.3, 0.29),
    ("responses_unscored", {}, "reward/unscored_share", 0.01, 0.0099),
    ("own_ratios_noisy", {}, "ratio/own_noise_rms", 0.11, 0.1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "others", "metric", "bad", "good"), THREE_STEPS)
def test_share_must_be_reached_in_three_steps_and_missed_in_three(
    rule: str, others: dict[str, float], metric: str, bad: float, good: float
) -> None:
    def found(values: Sequence[float]) -> list[tuple[str, int, int | None]]:
        series = {metric: values, **{name: [value] * len(values) for name, value in others.items()}}
        return found_in(series, others=["b"])

    assert found([good] * 12) == []
    assert found([bad, bad, good] * 4) == []
    assert found([good, bad, bad, bad]) == [(rule, 4, None)]
    assert found([bad] * 3 + [good, good, bad]) == [(rule, 3, None)]
    assert found([bad] * 5 + [good] * 3) == [(rule, 3, 8)]
    assert found([bad] * 3 + [good] * 3 + [bad] * 3) == [(rule, 3, 6), (rule, 9, None)]


def test_real_pair_whose_bounds_stop_every_row_is_found_in_both_directions() -> None:
    values = {"clip_cross/stopped_share": 1.0, "ratio_cross/mean": 0.34}
    steps = [(step, {"qwen": values, "smol": {**values, "ratio_cross/mean": 0.43}}) for step in (1, 2, 3)]
    findings = judge(steps, config_of())
    assert [(f.agent, f.partner, f.begun_at) for f in findings] == [("qwen", "smol", 3), ("smol", "qwen", 3)]
    assert findings[0].text == "bounds stop 100% of smol's rows, whose mean ratio is 0.34"
    assert "train each agent alone" in findings[0].message
    assert findings[0].message.startswith("step 3, qwen: cross rows stopped: bounds stop 100% of smol's rows")


def test_step_without_the_metric_neither_continues_nor_breaks_a_row_of_steps() -> None:
    bad, good = {"response/cut_share": 0.5}, {"response/cut_share": 0.0}
    steps = [(step, {"a": values}) for step, values in enumerate([bad, {}, bad, {}, bad, {}, {}, {}, good, good], 1)]
    assert [(f.begun_at, f.ended_at) for f in judge(steps, config_of())] == [(5, None)]
    steps.append((11, {"a": good}))
    assert [(f.begun_at, f.ended_at) for f in judge(steps, config_of())] == [(5, 11)]


def test_reward_of_the_real_small_model_is_stuck_at_the_twelfth_step_and_the_large_ones_is_not() -> None:
    small = [0.025, 0.031, 0.029, 0.027, 0.033, 0.028, 0.025, 0.030, 0.033, 0.026, 0.028, 0.031]
    assert found_in({REWARD: small}) == [("reward_stuck", 12, None)]
    large = [0.168, 0.266, 0.326, 0.279, 0.322, 0.305, 0.307, 0.352, 0.330, 0.352, 0.389, 0.369]
    assert found_in({REWARD: large}) == []


@pytest.mark.slow
def test_reward_must_rise_in_thirty_steps_unless_it_is_nearly_one() -> None:
    assert found_in({REWARD: noisy((0.4, 31))}) == []
    assert found_in({REWARD: noisy((0.4, 32))}) == [("reward_stuck", 32, None)]
    assert found_in({REWARD: noisy((0.92, 40))}) == []
    assert found_in({REWARD: line(0.40, 0.42, 40)}) == [], "a small rise, but a certain one"
    assert found_in({REWARD: [0.4 + 0.1 * (-1) ** step for step in range(40)]}) == [], "too noisy to be sure"
    assert found_in({REWARD: noisy((0.4, 34), (0.7, 8))})[0][:2] == ("reward_stuck", 32)
    assert found_in({REWARD: noisy((0.4, 34), (0.7, 8))})[0][2] is not None, "it rose after all"


def test_trend_is_that_of_a_line_of_least_squares() -> None:
    trend = Trend.of([0.0, 2.0, 1.0, 3.0])  # slope 0.8, residuals -0.3, 0.9, -0.9, 0.3: sum of squares 1.8
    assert trend.rise == pytest.approx(2.4)
    assert trend.error == pytest.approx(3 * math.sqrt(1.8 / 2 / 5))
    assert (trend.low, trend.high) == pytest.approx((2.4 - 2 * trend.error, 2.4 + 2 * trend.error))


def test_entropy_collapses_where_the_reward_has_stopped_to_rise() -> None:
    falling = [0.5] * 5 + [0.049] * 9
    assert found_in({"update/entropy_nats": falling, REWARD: noisy((0.5, 14))}) == [("entropy_collapsed", 12, None)]
    assert found_in({"update/entropy_nats": falling, REWARD: line(0.3, 0.6, 14)}) == [], "certain because it learns"
    assert found_in({"update/entropy_nats": falling, REWARD: noisy((0.95, 14))}) == [], "nothing left to learn"
    assert found_in({"update/entropy_nats": [0.5] * 5 + [0.051] * 9, REWARD: noisy((0.5, 14))}) == []
    short = {"update/entropy_nats": [0.5, 0.5, 0.001, 0.001, 0.001, 0.001], REWARD: noisy((0.5, 6))}
    assert found_in(short) == []
    again = {"update/entropy_nats": [*falling, *[0.5] * 8], REWARD: noisy((0.5, 22))}
    assert found_in(again) == [("entropy_collapsed", 12, 17)]  # the mean of five steps is above .05 from step 15 on


def test_length_runs_away_where_the_reward_does_not_rise() -> None:
    growing = [100.0] * 5 + [200.0] * 10
    assert found_in({"response/length_tokens": growing, REWARD: noisy((0.5, 15))}) == [
        ("length_running_away", 12, None)
    ]
    assert found_in({"response/length_tokens": growing, REWARD: line(0.3, 0.6, 15)}) == [], "it thinks, and is right"
    assert found_in({"response/length_tokens": [100.0] * 5 + [199.0] * 10, REWARD: noisy((0.5, 15))}) == []
    slow = line(100, 300, 80)
    assert found_in({"response/length_tokens": slow, REWARD: line(0.3, 0.6, 80)}) == []


def test_gradient_that_jumps_is_reported_at_once() -> None:
    assert found_in({"update/grad_norm": [1.0] * 5 + [10.0]}) == []
    assert found_in({"update/grad_norm": [1.0] * 5 + [10.1]}) == [("gradient_jumps", 6, None)]
    assert found_in({"update/grad_norm": [1.0] * 5 + [10.1, 1.0, 1.0, 1.0]}) == [("gradient_jumps", 6, 9)]
    assert found_in({"update/grad_norm": [1.0] * 4 + [50.0]}) == [], "too few steps to compare with"
    assert found_in({"update/grad_norm": [0.0] * 9 + [1.0]}) == [], "steps without a gradient are no measure"
    assert found_in({"update/grad_norm": [1.0] * 5 + [math.inf]}) == [("gradient_jumps", 6, None)]
    assert found_in({"update/grad_norm": [1.0] * 5 + [math.nan]}) == [("gradient_jumps", 6, None)]


def test_steps_added_one_by_one_give_the_same_as_all_at_once_and_each_change_once() -> None:
    bad, good = (
        {"response/cut_share": 0.5, "update/grad_norm": 1.0},
        {"response/cut_share": 0.0, "update/grad_norm": 1.0},
    )
    steps = [(step, {"a": bad if step <= 4 else good, "b": good}) for step in range(1, 9)]
    health, changes = Health(config_of()), list[Finding]()
    for step, agents in steps:
        changes += health.add(step, agents)
    assert [(f.begun_at, f.ended_at) for f in changes] == [(3, None), (3, 7)]
    assert health.findings == judge(steps, config_of()) == (changes[1],)
    assert changes[1].message == "step 7, a: responses cut is over; it began at step 3"


@pytest.mark.parametrize("method", ["grpo", "gspo", "gspo_x2", "naive", "hacpo"])
def test_forty_steps_of_the_demo_raise_nothing(method: str) -> None:
    """Real metrics of `hacpo train tiny METHOD`, three digits, taken once."""
    histories = json.loads(DEMO.read_text(encoding="utf-8"))[method]
    assert {"reward/mean", "advantage/uniform_share", "update/grad_norm"} <= set(histories["qwen-tiny"])
    steps = [
        (step + 1, {agent: {name: values[step] for name, values in own.items()} for agent, own in histories.items()})
        for step in range(40)
    ]
    assert judge(steps, config_of(method=method)) == ()


def test_metrics_that_rules_read_are_defined_and_names_are_unique() -> None:
    read = {metric for rule in RULES.values() for metric in rule.metrics}
    assert [metric for metric in read if not definition(metric) and not metric.startswith("evaluate/")] == []
    assert len(RULES) == 11


def test_accuracy_that_falls_by_more_than_two_errors_is_found_although_the_reward_rises() -> None:
    health = Health(config_of())

    def evaluated(step: int, accuracy: float) -> list[Finding]:
        return health.add(step, {"a": {"evaluate/dev": accuracy, "evaluate/dev_error": 0.03}})

    assert evaluated(0, 0.6) == evaluated(10, 0.65) == evaluated(20, 0.52) == []
    health.add(21, {"a": {"reward/mean": 0.9}})
    (found,) = evaluated(30, 0.51)
    assert found.message.startswith(
        "step 30, a: accuracy falls: accuracy on dev fell from 0.600 before training to 0.510"
    )
    assert [f.ended_at for at in (40, 50, 60) for f in evaluated(at, 0.58)] == [60]


def test_sampler_differs_by_more_than_its_data_type_explains() -> None:
    for dtype, nats, is_found in (
        ("bfloat16", 0.026, False),  # measured: SmolLM2
        ("bfloat16", 1.36, True),  # measured: an update that the sampler did not get
        ("bfloat16", 0.038, False),
        ("bfloat16", 0.040, True),
        ("float32", 9e-4, False),
        ("float32", 1.1e-3, True),
        ("float32", math.nan, True),
    ):
        found = found_in({"sampler/logprob_difference_mean": [nats]}, f"engine.dtype={dtype}")
        assert found == [("sampler_differs", 1, None)] * is_found, (dtype, nats)
    assert {name: torch.finfo(getattr(torch, name)).eps for name in EPS} == EPS


def test_noise_of_own_ratios_is_compared_with_the_methods_clip() -> None:
    bounds = ("method.objective.sequence_low=3e-4", "method.objective.sequence_high=4e-4")
    for noise, is_found in ((3.1e-4, True), (2.9e-4, False)):
        found = found_in({"ratio/own_noise_rms": [noise] * 3}, *bounds, method="gspo")
        assert found == [("own_ratios_noisy", 3, None)] * is_found
    assert found_in({"ratio/own_noise_rms": [0.5] * 3}, method="grpo") == [], "it bounds tokens, not responses"
