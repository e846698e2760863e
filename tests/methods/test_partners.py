"""Methods that learn from a partner: calibrated rewards, peers' right answers, LUFFY's shaped probabilities.

Shapes: P problem, A agent, G response, R response of one agent.
"""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from flows.runs.samples import step_samples
from hacpo_core.algo.calibration import calibrated_rewards
from hacpo_core.errors import ConfigError
from hacpo_core.methods.build import History
from hacpo_core.methods.builders.successes import PeerSuccesses
from hacpo_core.methods.estimate import ScoredStep
from hacpo_core.methods.estimators.calibrated import Calibrated
from hacpo_core.methods.estimators.groups import GroupEstimator
from hacpo_core.methods.estimators.peers import PeerRows
from hacpo_core.methods.objective import RowKind
from hacpo_core.methods.objectives.peer_shaping import PeerShaping
from hacpo_core.methods.objectives.token_clip import TokenClip
from hacpo_core.methods.registry import trains_alone
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import RowKey
from hacpo_core.responses import Responses
from tests.algo.micro_batch import MicroBatch
from tests.rollouts import Rollout, responses_of

Rewards = Mapping[str, Mapping[str, tuple[float | None, ...]]]


def responses(rewards: Rewards) -> dict[str, Responses]:
    """Verified responses of agents to problems, from their rewards."""
    return {
        agent: responses_of(
            [
                Rollout(problem, agent, i, (1,), (1, 2), (-1.0, -1.0), "x", "stop", "", reward)
                for problem, given in of_problems.items()
                for i, reward in enumerate(given)
            ]
        )
        for agent, of_problems in rewards.items()
    }


def scored(rewards: Rewards) -> ScoredStep:
    return ScoredStep(1, tuple(next(iter(rewards.values()))), responses(rewards), 0)


def advantages(estimator: GroupEstimator, step: ScoredStep, learner: str, source: str) -> list[float]:
    found: list[float] = estimator.estimate(step, {})[0].advantages[learner][source].tolist()
    return found


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_reward_is_calibrated_by_its_distance_to_the_peers_mean() -> None:
    reward_PAG = tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 1.0]]])
    found = calibrated_rewards(reward_PAG, torch.ones(2, 2, 2, dtype=torch.bool))
    assert found[0].tolist() == [[1.5, -0.5], [1.5, -0.5]]
    assert found[1, 0].tolist() == [1.0, 0.0], "the peer's rewards are all equal"
    assert found[1, 1].tolist() == [1.5, 1.5], "while its own are compared with the spread of the other"


def test_each_of_three_agents_adds_half_at_most() -> None:
    reward_PAG = tensor([[[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]])
    found = calibrated_rewards(reward_PAG, torch.ones(1, 3, 4, dtype=torch.bool))
    assert found[0, 0].tolist() == [2.0] * 4, "0.75 is cut to 0.5, twice"
    alone = calibrated_rewards(reward_PAG[:, :1], torch.ones(1, 1, 4, dtype=torch.bool))
    assert alone.tolist() == reward_PAG[:, :1].tolist()


def test_uncounted_and_unscored_responses_move_no_peer() -> None:
    step = scored({"a": {"p": (1.0, 0.0, None)}, "b": {"p": (1.0, 0.0, None)}})
    shaped = Calibrated().shape(step)
    assert shaped["a"].tolist()[:2] == [1.5, -0.5]
    assert math.isnan(shaped["a"][2])


def test_binary_rewards_normalised_after_calibration_are_grpos_again() -> None:
    """Why mean and standard deviation stay those of raw rewards."""
    step = scored({"a": {"p": (1.0, 0.0, 0.0, 0.0)}, "b": {"p": (1.0, 1.0, 1.0, 0.0)}})
    shaped = torch.from_numpy(Calibrated().shape(step)["a"])
    normalised = (shaped - shaped.mean()) / shaped.std()
    assert normalised.tolist() == pytest.approx(advantages(GroupEstimator(), step, "a", "a"), abs=1e-5)
    ilr = Calibrated(baseline="own")
    with_shape = ScoredStep(1, step.problem_ids, step.responses, 0, shaped_R=ilr.shape(step))
    found = ilr.estimate(with_shape, {})[0].advantages["a"]["a"]
    # mean of b 0.75: right 1 + 0.25, wrong 0 - 0.75; own mean 0.25, own std 0.5
    assert found.tolist() == pytest.approx([2.0, -2.0, -2.0, -2.0], abs=1e-5)


MIXED: Rewards = {"a": {"p": (1.0, 0.0), "q": (0.0, 0.0)}, "b": {"p": (1.0, 0.0), "q": (1.0, None)}}


def test_peers_row_is_compared_with_the_learners_own_group() -> None:
    step = scored(MIXED)
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert advantages(PeerRows(), step, "a", "a") == pytest.approx([half, -half, 0.0, 0.0])
    # q: nothing of a is right, so a right answer of b carries 1 - 0, where `group` has nothing
    assert advantages(PeerRows(), step, "a", "b") == pytest.approx([half, -half, 1.0, 0.0])
    assert advantages(GroupEstimator(), step, "a", "b")[2] == 0.0
    assert advantages(PeerRows(peer_advantage="reward"), step, "a", "b") == [1.0, 0.0, 1.0, 0.0]
    assert advantages(PeerRows(peer_advantage="reward"), step, "a", "a") == pytest.approx([half, -half, 0.0, 0.0])


def history(rewards: Rewards, *, sources: tuple[str, ...] = ("a", "b"), seed: int = 0) -> History:
    of_agents = responses(rewards)
    return History(
        step=1,
        problem_ids=tuple(rewards["a"]),
        sources=sources,
        num_samples=2,
        seed=seed,
        responses=lambda _, agent: of_agents[agent],
        estimate=lambda _: None,  # type: ignore[arg-type,return-value]
        trained_rows=lambda _: pytest.fail("no builder here reads them"),
    )


def test_own_rows_and_the_right_ones_of_peers_are_built() -> None:
    batches, _ = PeerSuccesses(problems=1).build(history(MIXED), {})
    rows = [key for batch in batches for key in batch]
    assert sorted(key for key in rows if key.agent == "a") == [RowKey(1, "a", p, i) for p in "pq" for i in (0, 1)]
    assert sorted(key for key in rows if key.agent == "b") == [RowKey(1, "b", "p", 0), RowKey(1, "b", "q", 0)]
    assert len(batches) == 2, "as many as own rows fill"


def test_graded_rewards_have_a_success_of_ones_choice() -> None:
    graded: Rewards = {"a": {"p": (0.0, 0.5)}, "b": {"p": (0.9, 0.4)}}
    (batch,), _ = PeerSuccesses(problems=1).build(history(graded), {})
    assert all(key.agent == "a" for key in batch)
    (batch,), _ = PeerSuccesses(problems=1, success_from=0.8).build(history(graded), {})
    assert [key for key in batch if key.agent == "b"] == [RowKey(1, "b", "p", 0)]
    assert advantages(PeerRows(peer_advantage="reward"), scored(graded), "a", "b") == [0.9, 0.4]


def test_peers_row_has_no_advantage_where_the_learner_has_no_verdict_to_compare_with() -> None:
    step = scored({"a": {"p": (None, None), "q": (0.0, 0.0)}, "b": {"p": (1.0, 0.0), "q": (1.0, 0.0)}})
    assert advantages(PeerRows(), step, "a", "b") == [0.0, 0.0, 1.0, 0.0]
    assert advantages(PeerRows(peer_advantage="reward"), step, "a", "b") == [1.0, 0.0, 1.0, 0.0]


def test_one_right_answer_to_a_problem_is_drawn_by_the_seed() -> None:
    many: Rewards = {"a": {"p": (0.0, 0.0)}, "b": {"p": (1.0, 1.0, 0.0, 1.0)}, "c": {"p": (1.0,)}}
    drawn = set()
    for seed in range(20):
        task = history(many, sources=("a", "b", "c"), seed=seed)
        (batch,), _ = PeerSuccesses(problems=1, max_per_problem=1).build(task, {})
        (peer,) = [key for key in batch if key.agent != "a"]
        drawn.add(peer)
    assert drawn == {RowKey(1, "b", "p", 0), RowKey(1, "b", "p", 1), RowKey(1, "b", "p", 3), RowKey(1, "c", "p", 0)}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "most"), [("sgt", 4), ("luffy", 1)])
def test_agents_train_on_all_own_rows_and_on_right_rows_of_the_partner(
    method: str, most: int, small_plan: Callable[..., Plan]
) -> None:
    words = ("evaluate.during=[]", "evaluate.final=[]", "train.num_steps=2", "engine.skip_zero_advantage=false")
    planned = small_plan(method, *words)
    run_experiment(planned, DirectRunner())
    samples = step_samples(planned, 1)
    is_own, is_trained = samples.agent == "llama", samples.ratio_for_llama.notna()
    assert is_trained[is_own].all()
    taken, right = samples[~is_own & is_trained], samples[~is_own & (samples.raw_reward == 1)]
    assert len(taken) > 0, "qwen solves some, or nothing is tested"
    assert (taken.raw_reward == 1).all()
    per_problem = right.groupby("problem_id").size()
    assert taken.groupby("problem_id").size().to_dict() == per_problem.clip(upper=most).to_dict()


def test_peers_row_is_weighed_by_a_shaped_probability_and_own_rows_are_grpos() -> None:
    old_BT = torch.full((2, 2), math.log(0.5), dtype=torch.float64)
    logprob_BT = tensor([[math.log(0.5)] * 2, [math.log(0.1), math.log(0.9)]]).requires_grad_()
    ones_B = torch.ones(2, dtype=torch.float64)
    batch = MicroBatch(
        torch.ones(2, 2, dtype=torch.bool),
        torch.tensor([True, False]),
        tensor([1.0, 2.0]),
        ones_B,
        old_BT.mean(dim=1),
        ones_B,
        old_logprob_BT=old_BT * torch.tensor([[1.0], [0.0]]),
    )
    rows = batch.rows()
    assert rows.kind_B.tolist() == [RowKind.OWN, RowKind.FOREIGN]
    found = PeerShaping().surrogate(rows, logprob_BT, update=0)
    own = TokenClip().surrogate(rows, logprob_BT, update=0)
    assert found.value_B[0].item() == own.value_B[0].item() == pytest.approx(2.0)
    assert found.value_B[1].item() == pytest.approx(2.0 * (0.1 / 0.2 + 0.9 / 1.0))
    found.value_B.sum().backward()
    assert logprob_BT.grad is not None
    # d/dlogp of p/(p + 0.1) = 0.1 p/(p + 0.1)^2, times A = 2
    assert logprob_BT.grad[1].tolist() == pytest.approx([2 * 0.01 / 0.04, 2 * 0.09 / 1.0])
    assert found.stopped_share_B.tolist() == [0.0, 0.0]
    assert found.above_B.tolist() == found.below_B.tolist() == [0.0, 0.0], "peers' rows have no bounds"


def test_grids_split_only_what_reads_no_partner() -> None:
    alone = {name: trains_alone(compose("tiny", name).method) for name in ("ha_dw", "ilr", "xgrpo", "sgt", "cbs")}
    assert alone == {"ha_dw": True, "ilr": False, "xgrpo": False, "sgt": False, "cbs": True}


def test_part_about_partners_rows_needs_shared_rollouts() -> None:
    for method, word, field in (
        ("luffy", "method.shares_rollouts=false", "method.estimate.name: got peer_rows"),
        ("gspo", "method.build.name=peer_successes", "method.build.name: got peer_successes"),
        ("grpo", "method.objective.name=peer_shaping", "method.objective.name: got peer_shaping"),
    ):
        with pytest.raises(ConfigError, match=rf"{field}, .* set method.shares_rollouts=true"):
            compose("tiny", method, overrides=[word])
