"""Methods that look back: HA-DW's difficulty weights and the bandit over responses.

Shapes: P problem, A agent, G response, N row, C number of a context.
"""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.algo import gain_network
from hacpo_core.algo.difficulty import difficulty_weights, kalman_anchor, mean_anchor
from hacpo_core.methods.builders.bandit import Bandit
from hacpo_core.methods.estimators.capability import CapabilityEstimator
from hacpo_core.methods.estimators.difficulty import DifficultyWeighted
from hacpo_core.methods.state import decode, encode
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import RowKey
from hacpo_core.store.steps import StepStore
from tests.methods.test_partners import scored


def test_right_answer_to_a_hard_problem_weighs_more_and_a_wrong_one_less() -> None:
    reward_PAG = torch.tensor([[[1.0, 0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0, 0.0]]], dtype=torch.float64)
    weight_PAG = difficulty_weights(reward_PAG, torch.ones(2, 1, 4, dtype=torch.bool), anchor=0.5, scale=1.3)
    up, down = 1.3 * math.exp(0.25), 1.3 * math.exp(-0.25)
    assert weight_PAG[0, 0].tolist() == pytest.approx([up, down, down, down]), "p = 0.25, harder than usual"
    assert weight_PAG[1, 0].tolist() == pytest.approx([down, down, down, up]), "p = 0.75, easier than usual"


def test_problem_as_hard_as_usual_and_equal_rewards_weigh_the_scale() -> None:
    reward_PAG = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]], dtype=torch.float64)
    weight_PAG = difficulty_weights(reward_PAG, torch.ones(2, 1, 2, dtype=torch.bool), anchor=0.5, scale=2.0)
    assert weight_PAG.flatten().tolist() == [2.0] * 4


def test_anchors_by_hand() -> None:
    assert mean_anchor([0.2, 0.4, 0.6]) == pytest.approx(0.4)
    assert kalman_anchor([], 0.4, gain=1.0) == 0.4
    assert kalman_anchor([0.4], 0.6, gain=1.0) == 0.5
    # std of (0.4, 0.6) is 0.1, so with gain 2 a fifth of the way
    assert kalman_anchor([0.4, 0.6], 1.0, gain=2.0) == pytest.approx(0.68)
    assert kalman_anchor([0.4, 0.6], 1.0, gain=100.0) == 1.0, "no further than the accuracy"
    assert kalman_anchor([0.0, 0.0], 1.0, gain=1.0) == 0.5, "equal anchors do not stand still"


def test_capability_may_count_the_first_responses_alone_and_ratios_may_be_one_at_first() -> None:
    step = scored({"a": {"p": (1.0, 0.0), "q": (0.0, 1.0)}, "b": {"p": (1.0, 1.0), "q": (1.0, 0.0)}})
    everything, _ = CapabilityEstimator().estimate(step, {})
    first, state = CapabilityEstimator(max_counted=1).estimate(step, {})
    later, _ = CapabilityEstimator(equal_before=step.step + 1).estimate(step, {})
    at_once, _ = CapabilityEstimator(equal_before=step.step).estimate(step, {})
    assert state == {"window": {"a": [0.5], "b": [1.0]}}, "1 and 0 of two first ones; 1 and 1"
    ratio = "capability/ratio_to_b"
    assert [each.figures["a"][ratio] for each in (everything, first, later, at_once)] == pytest.approx(
        [2 / 3, 1 / 2, 1.0, 2 / 3]
    )
    assert later.weight_R("a", "b").tolist() == [1.0] * 4
    # All responses count in the baseline: problem p of a has mu = (1/2 + 1/2 * 1) / 2, and (1, 0, 1, 1) sigma = 1/2.
    assert first.advantages["a"]["a"][:2].tolist() == pytest.approx([1.0, -1.0], abs=1e-5)


STEP = {"a": {"p": (1.0, 0.0), "q": (0.0, 0.0)}, "b": {"p": (1.0, 1.0), "q": (1.0, 0.0)}}


def test_anchor_is_the_learners_own_and_others_rows_keep_their_weight() -> None:
    step = scored(STEP)
    estimator = DifficultyWeighted(baseline="own", anchor_steps=2, difficulty_scale=1.0)
    before, _ = CapabilityEstimator(baseline="own").estimate(step, {})
    estimate, state = estimator.estimate(step, {"difficulty": {"a": [0.75, 0.75], "b": [0.75]}})
    assert state["difficulty"] == {"a": [0.75, 0.25], "b": [0.75, 0.75]}
    # anchor of a: 0.5; p of problem p: 0.5, of q: 0
    assert estimate.weight_R("a", "a").tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert estimate.weight_R("b", "b").tolist() == pytest.approx([1.0, 1.0, math.exp(0.25), math.exp(-0.25)])
    assert estimate.weight_R("a", "b").tolist() == before.weight_R("a", "b").tolist()
    everything, _ = DifficultyWeighted(baseline="own", difficulty_scale=1.0, weighs="all").estimate(step, {})
    # anchor of a: 0.25; q of b has p = 0.5
    factor = everything.weight_R("a", "b") / before.weight_R("a", "b")
    assert factor.tolist() == pytest.approx([1.0, 1.0, math.exp(-0.25), math.exp(0.25)])
    assert everything.figures["a"]["difficulty/anchor"] == 0.25


def test_gradient_of_the_network_is_that_of_autograd() -> None:
    draw = np.random.default_rng(1)
    context_NC = draw.normal(size=(5, 3))
    parameters = gain_network.add_rows(gain_network.initial(3, 4, draw), context_NC)
    after = gain_network.fit(parameters, context_NC, 0.3, learning_rate=1e-3, num_passes=1)
    weights = {name: torch.tensor(parameters[name], requires_grad=True) for name in ("0.weight", "0.bias", "2.weight")}
    x_NC = torch.tensor((context_NC - context_NC.mean(axis=0)) / context_NC.std(axis=0))
    hidden_NH = (x_NC @ weights["0.weight"].T + weights["0.bias"]).relu()
    gain_N = (hidden_NH @ weights["2.weight"].T)[:, 0] + parameters["2.bias"].item()
    ((gain_N - 0.3) ** 2).mean().backward()
    for name, weight in weights.items():
        assert weight.grad is not None
        assert after[f"{name}.exp_avg"] == pytest.approx(0.1 * weight.grad.numpy())


def test_network_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    draw = np.random.default_rng(3)
    context_NC = draw.normal(size=(6, 3))
    first = gain_network.add_rows(gain_network.initial(3, 4, draw), context_NC)
    whole = gain_network.fit(first, context_NC, 1.0, learning_rate=1e-2, num_passes=6)
    half = gain_network.fit(first, context_NC, 1.0, learning_rate=1e-2, num_passes=3)
    stored = decode(json.loads(json.dumps(encode(half, owner="test"))))
    again = gain_network.fit(stored, context_NC, 1.0, learning_rate=1e-2, num_passes=3)
    assert whole.keys() == again.keys()
    assert all((whole[name] == again[name]).all() for name in whole)


def test_running_statistics_are_those_of_all_rows() -> None:
    rows_NC = np.random.default_rng(2).normal(3.0, 2.0, (9, 2))
    parameters = gain_network.initial(2, 4, np.random.default_rng(0))
    for part in (rows_NC[:2], rows_NC[2:2], rows_NC[2:]):
        parameters = gain_network.add_rows(parameters, part)
    assert parameters["mean_C"] == pytest.approx(rows_NC.mean(axis=0))
    assert np.sqrt(parameters["square_C"] / parameters["count"]) == pytest.approx(rows_NC.std(axis=0))


def test_best_arms_are_taken_and_any_by_chance() -> None:
    gains = {RowKey(1, "a", "p", i): gain for i, gain in enumerate((0.1, 0.4, 0.3, 0.2))}
    best = Bandit(exploration=0.0).chosen(gains, 2, np.random.default_rng(0))
    assert [key.sample for key in best] == [1, 2]
    drawn = {
        key.sample
        for seed in range(40)
        for key in Bandit(exploration=1.0).chosen(gains, 2, np.random.default_rng(seed))
    }
    assert drawn == {0, 1, 2, 3}


@pytest.mark.slow
def test_fresh_groups_are_cut_and_earlier_rows_come_back(small_plan: Callable[..., Plan]) -> None:
    words = ("method.build.kept_share=0.5", "method.build.reused_share=0.5", "evaluate.during=[]", "evaluate.final=[]")
    planned = small_plan("cbs", *words, "engine.skip_zero_advantage=false")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    counts = []
    for step in range(1, 5):
        value = store.read_value(step, "update.qwen", "update.qwen.json")
        num_rows = sum(batch["num_rows"] for batch in value["minibatches"])
        counts.append(num_rows)
        assert all(int(text.split()[0]) > step - 2 for text in value["state"]["uses"])
        rows = store.read_table(step, "update.qwen", "update.qwen.parquet")
        assert set(rows["agent"]) == {"qwen"}
        assert rows["step"].between(max(1, step - 2), step).all()
        assert (rows["step"] < step).any() == (step > 1)
        assert ("ratio_old/mean" in store.metrics(step)["agents"]["qwen"]) == (step > 1)
    sampled = len(store.read_table(1, "rollout.qwen", "rollouts.qwen.parquet"))
    assert counts[0] == sampled // 2, "nothing to come back in the first step"
    assert counts[1:] == [sampled] * 3
