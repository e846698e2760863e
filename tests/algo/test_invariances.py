"""What must hold for any rewards and any number of agents.

Shapes: P problem, A agent, G response, L learner.
"""

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hacpo_core.algo.capability import capability_ratios, mean_reward, positive_rate, windowed_capability
from tests.algo.joint import Joint, joint

Choices = dict[str, Any]
METHODS: list[Choices] = [
    {"baseline": baseline, "cross_baseline": cross_baseline, "cross_weight": cross_weight, "binary_guard": guard}
    for baseline, cross_baseline, cross_weight, guard in [
        ("own", "source", "one", False),
        ("pooled", "source", "one", False),
        ("capability", "source", "capability", True),
        ("capability", "learner", "capability", True),
        ("capability", "source", "capability", False),
        ("capability", "learner", "one", False),
    ]
]
quick = settings(max_examples=40, deadline=None)
any_method = st.sampled_from([*METHODS, {"baseline": "pooled", "scale": "own"}])
any_reward = st.floats(0.0, 1.0, allow_subnormal=True)
# Sums of these are exact, so that the order of the terms cannot matter.
exact_reward = st.one_of(st.sampled_from([0.0, 1.0]), st.integers(0, 32).map(lambda n: n / 32))
capability = st.floats(0.0, 1.0)


@dataclass(frozen=True)
class Group:
    reward_PAG: Tensor
    is_scored_PAG: Tensor
    capability_A: Tensor

    def joint(self, method: Choices) -> Joint:
        ratio_AA = None if "scale" in method else capability_ratios(self.capability_A)
        return joint(self.reward_PAG, self.is_scored_PAG, ratio_AA, **method)


@st.composite
def groups(draw: st.DrawFn, reward: st.SearchStrategy[float], *, is_uniform: bool = False) -> Group:
    """One to five agents, some responses without a verdict, at least one verdict for every agent."""
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    size = math.prod(shape)
    one_reward = draw(reward)
    rewards = st.just([one_reward] * size) if is_uniform else st.lists(reward, min_size=size, max_size=size)
    is_scored_PAG = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(shape)
    is_scored_PAG[0, :, 0] = True
    capabilities = draw(st.lists(capability, min_size=shape[1], max_size=shape[1]))
    return Group(
        torch.tensor(draw(rewards), dtype=torch.float64).reshape(shape),
        is_scored_PAG,
        torch.tensor(capabilities, dtype=torch.float64),
    )


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@quick
@given(groups(any_reward), st.sampled_from(METHODS), st.sampled_from([mean_reward, positive_rate]))
def test_any_rewards_give_finite_numbers(
    group: Group, method: Choices, capability: Callable[[Tensor, Tensor], Tensor]
) -> None:
    batch_A = capability(group.reward_PAG, group.is_scored_PAG)
    smoothed_A = windowed_capability(torch.stack([batch_A, group.capability_A, batch_A]))
    ratios = capability_ratios(smoothed_A)
    found = joint(group.reward_PAG, group.is_scored_PAG, ratios, **method)
    for value in (batch_A, smoothed_A, ratios, found.advantage_LPAG, found.weight_LA, found.baseline.mean_PA):
        assert value.isfinite().all()
    assert 0.1 <= ratios.min() <= ratios.max() <= 10.0


@quick
@given(groups(any_reward, is_uniform=True), any_method)
def test_uniform_group_gives_exactly_zero(group: Group, method: Choices) -> None:
    assert group.joint(method).advantage_LPAG.eq(0.0).all()


@quick
@given(groups(any_reward), any_method, st.sampled_from([math.nan, math.inf, -1e308, 1.0]))
def test_reward_without_a_verdict_is_never_read(group: Group, method: Choices, anything: float) -> None:
    clean_PAG, odd_PAG = (group.reward_PAG.where(group.is_scored_PAG, value) for value in (0.0, anything))
    clean, odd = replace(group, reward_PAG=clean_PAG).joint(method), replace(group, reward_PAG=odd_PAG).joint(method)
    assert torch.equal(clean.advantage_LPAG, odd.advantage_LPAG)
    assert torch.equal(mean_reward(clean_PAG, group.is_scored_PAG), mean_reward(odd_PAG, group.is_scored_PAG))
    assert odd.advantage_LPAG[:, ~group.is_scored_PAG].eq(0.0).all()


@quick
@given(groups(exact_reward), any_method, st.randoms(use_true_random=False))
def test_order_of_agents_permutes_the_result(group: Group, method: Choices, random: object) -> None:
    order = list(range(len(group.capability_A)))
    random.shuffle(order)  # type: ignore[attr-defined]
    before = group.joint(method)
    after = Group(group.reward_PAG[:, order], group.is_scored_PAG[:, order], group.capability_A[order]).joint(method)
    assert_close(after.advantage_LPAG, before.advantage_LPAG[order][:, :, order])
    assert_close(after.weight_LA, before.weight_LA[order][:, order])


@quick
@given(groups(exact_reward), any_method, st.randoms(use_true_random=False))
def test_order_of_responses_permutes_the_result(group: Group, method: Choices, random: object) -> None:
    order = list(range(group.reward_PAG.shape[2]))
    random.shuffle(order)  # type: ignore[attr-defined]
    before = group.joint(method).advantage_LPAG
    shuffled = replace(group, reward_PAG=group.reward_PAG[:, :, order], is_scored_PAG=group.is_scored_PAG[:, :, order])
    assert_close(shuffled.joint(method).advantage_LPAG, before[..., order])


def mean_by_hand(rewards: list[float]) -> float | None:
    return statistics.fmean(rewards) if rewards else None


def baseline_by_hand(
    method: Choices, scored: list[list[float]], k: int, w: list[list[float]], *, guards: bool
) -> float:
    """Eq. 5 or 7, or Naive's plain mean, from lists of nothing but the scored rewards; 0 where there are none."""
    means = [mean_by_hand(rewards) for rewards in scored]
    own = means[k] or 0.0
    if method["baseline"] == "own":
        return own
    if method["baseline"] == "pooled":
        return mean_by_hand(list(itertools.chain.from_iterable(scored))) or 0.0
    mu = mean_by_hand([w[k][j] * mean for j, mean in enumerate(means) if mean is not None]) or 0.0
    return own if guards and mu > 1.0 and scored[k] else mu


def on_scored_subset(group: Group, method: Choices) -> Tensor:
    """advantage_LPAG by Eq. 5-7, 10 and 50, in plain Python."""
    num_problems, num_agents, num_samples = group.reward_PAG.shape
    w = capability_ratios(group.capability_A).tolist()
    expected_LPAG = torch.zeros(num_agents, num_problems, num_agents, num_samples, dtype=torch.float64)
    guards = method["baseline"] == "capability" and method["binary_guard"]
    agents = range(num_agents)
    for p in range(num_problems):
        scored = [group.reward_PAG[p, j][group.is_scored_PAG[p, j]].tolist() for j in agents]
        pooled = [reward for rewards in scored for reward in rewards]
        for k, j, i in itertools.product(agents, agents, range(num_samples)):
            judge = k if method.get("cross_baseline") == "learner" else j
            ranked = scored[judge] if method["baseline"] == "own" else pooled
            if group.is_scored_PAG[p, j, i] and len(set(ranked)) > 1:
                mu = baseline_by_hand(method, scored, judge, w, guards=guards)
                has_own = method.get("scale") == "own" and len(set(scored[judge])) > 1
                sigma = statistics.stdev(scored[judge] if has_own else ranked)
                expected_LPAG[k, p, j, i] = (group.reward_PAG[p, j, i].item() - mu) / (sigma + 1e-6)
    return expected_LPAG


@quick
@given(groups(exact_reward), any_method)
def test_missing_verdicts_leave_what_the_scored_subset_gives(group: Group, method: Choices) -> None:
    assert_close(group.joint(method).advantage_LPAG, on_scored_subset(group, method))


@pytest.mark.parametrize("num_agents", [1, 2, 3, 4, 5])
def test_equal_agents_have_equal_advantages_in_any_number(num_agents: int) -> None:
    reward_PAG = torch.tensor([[[1.0, 0.0, 0.0, 0.0]] * num_agents], dtype=torch.float64)
    found = joint(
        reward_PAG,
        torch.ones_like(reward_PAG).bool(),
        torch.ones(num_agents, num_agents, dtype=torch.float64),
        **METHODS[2],
    )
    # sigma^2 = n * 4 * (1/4 * 3/4) / (4 n - 1)
    sigma = math.sqrt(0.75 * num_agents / (4 * num_agents - 1))
    expected = torch.tensor([0.75, -0.25, -0.25, -0.25], dtype=torch.float64) / (sigma + 1e-6)
    assert_close(found.advantage_LPAG, expected.expand_as(found.advantage_LPAG))
    assert found.weight_LA.tolist() == [[1.0] * num_agents] * num_agents
