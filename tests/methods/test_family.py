"""The field's baselines: hand numbers, limits, and one that the neighbour's formula fails.

Agreement with TRL and verl on random inputs is in tests/algo/test_peers.py. Shapes: R response, B row, T token.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from flows.runs.samples import step_samples
from hacpo_core.algo.advantages import whitened
from hacpo_core.errors import ConfigError
from hacpo_core.methods.build import History
from hacpo_core.methods.builders.shuffled import Shuffled
from hacpo_core.methods.estimate import ScoredStep
from hacpo_core.methods.estimators.batch_normalised import BatchNormalised
from hacpo_core.methods.estimators.groups import GroupEstimator
from hacpo_core.methods.estimators.leave_one_out import LeaveOneOut
from hacpo_core.methods.objective import Objective, Surrogate
from hacpo_core.methods.objectives.cispo import Cispo
from hacpo_core.methods.objectives.gmpo import Gmpo
from hacpo_core.methods.objectives.sapo import Sapo
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.methods.plan import PlanTask
from hacpo_core.methods.plans.dynamic_sampling import DynamicSampling
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import Gold, Message, Problem, SamplingLimits
from hacpo_core.responses import Responses
from hacpo_core.store.steps import StepStore
from tests.algo.micro_batch import MicroBatch
from tests.rollouts import Rollout, responses_of

pytestmark = pytest.mark.slow

FAMILY = ["dr_grpo", "rloo", "reinforce_pp", "dapo", "cispo", "sapo", "gmpo"]


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rollout(
    problem: str, index: int, reward: float | None, *, tokens: int = 2, tag: str = "", agent: str = "a"
) -> Rollout:
    ids, logprobs = tuple(range(tokens)), (-1.0,) * tokens
    return Rollout(problem, agent, index, (1,), ids, logprobs, "x", "stop", tag, reward)


def scored(*rollouts: Rollout, max_response_tokens: int = 0) -> ScoredStep:
    problems = tuple(dict.fromkeys(each.problem_id for each in rollouts))
    return ScoredStep(1, problems, {"a": responses_of(rollouts)}, 0, max_response_tokens)


def test_leave_one_out_leaves_unscored_out_and_gives_a_lone_response_nothing() -> None:
    step = scored(rollout("p", 0, 1.0), rollout("p", 1, 0.0), rollout("p", 2, None), rollout("q", 0, 1.0))
    estimate, state = LeaveOneOut().estimate(step, {})
    assert estimate.advantages["a"]["a"].tolist() == [1.0, -1.0, 0.0, 0.0]
    assert state == {}


def test_batch_normalisation_weighs_responses_by_their_tokens() -> None:
    # mean (1*1 + 3*0)/4 = 0.25, variance (0.75^2 + 3*0.25^2)/3 = 0.25
    found = whitened(tensor([1.0, 0.0]), torch.tensor([1, 3]), torch.tensor([True, True]))
    assert found.tolist() == pytest.approx([1.5, -0.5], abs=1e-6)
    # dividing by N = 4 tokens instead of N - 1 would give sqrt(4/3) times as much
    assert (found * math.sqrt(4 / 3)).tolist() == pytest.approx([1.7320508, -0.5773503], abs=1e-6)
    step = scored(rollout("p", 0, 1.0, tokens=1), rollout("q", 0, 0.0, tokens=3), rollout("q", 1, None))
    advantage_R = BatchNormalised().estimate(step, {})[0].advantages["a"]["a"]
    assert advantage_R.tolist() == pytest.approx([1.5, -0.5, 0.0], abs=1e-6)


def test_group_means_may_be_taken_out_first() -> None:
    step = scored(*(rollout(p, i, reward) for p, rewards in {"p": (1.0, 1.0), "q": (1.0, 0.0)}.items()
                    for i, reward in enumerate(rewards)))  # fmt: skip
    advantage_R = BatchNormalised(subtracts_group_mean=True).estimate(step, {})[0].advantages["a"]["a"]
    # 0, 0, 0.5, -0.5, two tokens each: mean 0, variance 2 * (0.25 + 0.25) / 7
    assert advantage_R.tolist() == pytest.approx([0, 0, 0.5 / math.sqrt(1 / 7), -0.5 / math.sqrt(1 / 7)], abs=1e-6)


def test_batch_of_equal_rewards_carries_nothing() -> None:
    step = scored(rollout("p", 0, 1.0), rollout("q", 0, 1.0))
    assert BatchNormalised().estimate(step, {})[0].advantages["a"]["a"].tolist() == [0.0, 0.0]


def test_without_a_scale_advantages_are_in_units_of_reward() -> None:
    step = scored(rollout("p", 0, 1.0), rollout("p", 1, 0.0), rollout("p", 2, 0.0), rollout("p", 3, 0.0))
    advantage_R = GroupEstimator(scale="none").estimate(step, {})[0].advantages["a"]["a"]
    assert advantage_R.tolist() == [0.75, -0.25, -0.25, -0.25]
    assert GroupEstimator().estimate(step, {})[0].advantages["a"]["a"][0] == pytest.approx(1.5, abs=1e-4)


def test_overlong_penalty_grows_linearly_in_the_last_part_of_the_limit() -> None:
    lengths = (4, 8, 9, 10)
    step = scored(*(rollout("p", i, 1.0, tokens=n) for i, n in enumerate(lengths)), max_response_tokens=10)
    shaped = GroupEstimator(overlong_share=0.2, overlong_penalty=0.5).shape(step)
    assert shaped["a"].tolist() == [1.0, 1.0, 0.75, 0.5]
    assert GroupEstimator().shape(step) == {}


def surrogate(objective: Objective, log_ratios: list[list[float]], advantages: list[float]) -> tuple[Surrogate, Tensor]:
    """What an objective says of own rows with these log-ratios of tokens, and the gradient of the values' sum."""
    old_BT = torch.full((len(log_ratios), len(log_ratios[0])), -1.0, dtype=torch.float64)
    logprob_BT = (old_BT + tensor(log_ratios)).requires_grad_()
    mask_BT = torch.ones_like(old_BT, dtype=torch.bool)
    ones_B = torch.ones(len(advantages), dtype=torch.float64)
    batch = MicroBatch(
        mask_BT, ones_B.bool(), tensor(advantages), ones_B, old_BT.mean(dim=1), ones_B, old_logprob_BT=old_BT
    )
    found = objective.surrogate(batch.rows(), logprob_BT, update=0)
    found.value_B.sum().backward()
    assert logprob_BT.grad is not None
    return found, logprob_BT.grad


def test_cispo_keeps_every_gradient_at_the_bounded_ratio() -> None:
    found, gradient_BT = surrogate(Cispo(ratio_ceiling=2.0), [[0.0, math.log(3.0)]], [0.5])
    assert gradient_BT[0].tolist() == pytest.approx([0.5, 1.0])  # 1 * A and 2 * A
    assert found.value_B.item() == pytest.approx(0.5 * -1.0 + 1.0 * (math.log(3.0) - 1.0))
    clipped = surrogate(TokenClip(token_high=1.0), [[0.0, math.log(3.0)]], [0.5])[1]
    assert clipped[0, 1].item() == 0.0, "a clip, its neighbour, takes it away"


def test_sapo_is_the_policy_gradient_at_ratio_one_and_fades_on_both_sides() -> None:
    _, at_one_BT = surrogate(Sapo(), [[0.0], [0.0]], [1.0, -2.0])
    assert at_one_BT.flatten().tolist() == pytest.approx([1.0, -2.0])
    found, gradient_BT = surrogate(Sapo(positive_temperature=2.0), [[math.log(2.0)]], [1.0])
    gate = 1 / (1 + math.exp(-2.0))
    assert found.value_B.item() == pytest.approx(2.0 * gate)
    assert gradient_BT.item() == pytest.approx(4 * gate * (1 - gate) * 2.0)  # d/dr times r
    up, down = (surrogate(Sapo(negative_temperature=8.0), [[math.log(3.0)]], [a])[1].item() for a in (1.0, -1.0))
    assert abs(down) < abs(up) / 100, "negative advantages have a temperature of their own"
    exact = surrogate(Sapo(), [[math.log(2.0)]], [-1.0])[0].value_B.item()
    assert exact == pytest.approx(-4 / 1.05 / (1 + math.exp(-1.05)), rel=1e-14), "tau is not rounded to float32"


def test_gmpo_clips_each_token_before_the_mean() -> None:
    found, gradient_BT = surrogate(Gmpo(log_low=0.4, log_high=0.4), [[0.1, 0.9], [0.1, 0.9]], [1.0, -1.0])
    assert found.value_B.tolist() == pytest.approx([math.exp(0.25), -math.exp(0.5)])
    assert found.stopped_share_B.tolist() == [0.5, 0.0]
    assert found.above_B.tolist() == [0.5, 0.5], "a token of two, not the response, whose ratio is exp(0.5)"
    assert found.below_B.tolist() == [0.0, 0.0]
    assert gradient_BT.flatten().tolist() == pytest.approx(
        [math.exp(0.25) / 2, 0.0, -math.exp(0.5) / 2, -math.exp(0.5) / 2]
    )


PROBLEMS = [Problem(name, (Message("user", name),), Gold("1"), "") for name in ("p", "q", "r")]
TASK = PlanTask(1, "a", PROBLEMS, 2, SamplingLimits(1.0, 1.0, 8), 0, sources=("a", "b"))


def verified(**rewards: dict[str, tuple[float | None, ...]]) -> dict[str, Responses]:
    return {
        agent: responses_of([rollout(p, i, r, agent=agent) for p, given in of.items() for i, r in enumerate(given)])
        for agent, of in rewards.items()
    }


def test_problems_of_equal_rewards_are_sampled_again_judged_on_all_sources() -> None:
    plan = DynamicSampling(max_rounds=3)
    assert plan.num_rounds == 3
    first, _ = plan.plan(TASK, {})
    assert [(spec.problem.id, spec.sample) for spec in first] == [(p, i) for p in "pqr" for i in (0, 1)]
    found = verified(
        a={"p": (1.0, 1.0), "q": (1.0, 1.0), "r": (0.0, None)}, b={"p": (0.0, 0.0), "q": (1.0, 1.0), "r": (0.0, 0.0)}
    )
    again, _ = plan.plan(replace(TASK, round=1, verified=found), {})
    assert [(spec.problem.id, spec.sample) for spec in again] == [("q", 2), ("q", 3), ("r", 2), ("r", 3)]
    alone, _ = plan.plan(replace(TASK, round=1, verified=found, sources=("a",)), {})
    assert [spec.problem.id for spec in alone] == ["p", "p", "q", "q", "r", "r"], "who trains alone judges alone"


def test_builder_leaves_problems_of_equal_rewards_out_unless_all_are() -> None:
    def build(rewards: dict[str, tuple[float | None, ...]]) -> set[str]:
        (responses,) = verified(a=rewards).values()
        history = History(1, ("p", "q"), ("a",), 2, 0, lambda *_: responses, lambda _: None, lambda _: None)  # type: ignore[arg-type,return-value]
        batches, _ = Shuffled(problems=1, drops_equal_rewards=True).build(history, {})
        return {key.problem_id for batch in batches for key in batch}

    assert build({"p": (1.0, 0.0), "q": (1.0, 1.0)}) == {"p"}
    assert build({"p": (1.0, 1.0), "q": (0.0, 0.0)}) == {"p", "q"}


SHORT = ("evaluate.during=[]", "evaluate.final=[]", "train.num_steps=2", "engine.skip_zero_advantage=false")


@pytest.mark.parametrize("method", FAMILY)
def test_method_trains_two_agents(method: str, small_plan: Callable[..., Plan]) -> None:
    planned = small_plan(method, *SHORT)
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    for step in (1, 2):
        for agent in ("qwen", "llama"):
            values = store.metrics(step)["agents"][agent]
            assert np.isfinite(list(values.values())).all()
            assert values["tokens/trained"] > 0


def test_dapo_counts_the_tokens_of_all_rounds_and_trains_on_groups_with_spread(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("dapo", *SHORT)
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    samples = step_samples(planned, 1)
    own = samples[samples.agent == "qwen"]
    assert own["sample"].max() >= 4, "some groups had equal rewards, or nothing is tested"
    rollouts = [f"rollout{n}.qwen" for n in ("", "-2", "-3")]
    tokens = [
        store.read_table(1, phase, f"{phase.replace('rollout', 'rollouts')}.parquet")["token_ids"].map(len).sum()
        for phase in rollouts
    ]
    assert store.metrics(1)["agents"]["qwen"]["tokens/sampled"] == sum(tokens) > tokens[0]
    spread = own.groupby("problem_id")["raw_reward"].nunique()
    trained = set(store.read_table(1, "update.qwen", "update.qwen.parquet")["problem_id"])
    expected = set(spread[spread > 1].index) or set(spread.index)
    assert trained == expected


def test_token_ratios_and_shared_rollouts_are_refused_together() -> None:
    with pytest.raises(ConfigError, match=r"which uses a ratio per token, with method.shares_rollouts=true, but"):
        compose("tiny", "cispo", overrides=["method.shares_rollouts=true"])
