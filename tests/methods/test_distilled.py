"""On-policy distillation: who teaches whom, and what a teacher's log-probabilities do to an update."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.config import EngineConfig
from hacpo_core.config.checks import validate
from hacpo_core.config.identity import experiment_id
from hacpo_core.errors import ConfigError, MethodError
from hacpo_core.methods.base import State
from hacpo_core.methods.estimate import Estimate, ScoredStep
from hacpo_core.methods.estimators.distilled import Distilled
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore
from tests.engines.small import small_model
from tests.engines.training import GRPO, LINEAR, assert_close, learner_of, rows_of, run, weights
from tests.methods.test_partners import scored

pytestmark = pytest.mark.slow

SHORT = ("evaluate.during=[]", "evaluate.final=[]")
STEP = {"a": {"p": (1.0, 0.0)}, "b": {"p": (1.0, 1.0)}}


def test_most_capable_agent_of_the_window_teaches_the_others() -> None:
    step = scored(STEP)
    assert Distilled(baseline="own").teachers(step, {}) == {"a": "b"}
    before = {"window": {"a": [1.0, 1.0], "b": [0.0, 0.0]}}
    assert Distilled(baseline="own").teachers(step, before) == {"b": "a"}
    assert Distilled(baseline="own", window=1).teachers(step, before) == {"a": "b"}
    assert Distilled(baseline="own").teachers(scored({"a": STEP["a"], "b": STEP["a"]}), {}) == {}


def test_taught_agents_train_on_their_teacher_and_the_teacher_on_rewards() -> None:
    step = scored({"a": {"p": (1.0, 0.0, 0.0)}, "b": {"p": (1.0, 1.0, 0.0)}})
    advantages = Distilled(baseline="own").estimate(step, {})[0].advantages
    assert advantages["a"]["a"].tolist() == [0.0, 0.0, 0.0]
    assert np.abs(advantages["b"]["b"]).min() > 0.5


def test_differences_are_cut_centred_and_weighed() -> None:
    difference_N = np.array([-9.0, 1.0, np.nan, 3.0])
    centred = Distilled(teacher_weight=3.0, max_difference=2.0).token_advantage(difference_N)
    assert centred.tolist() == pytest.approx([-7.0, 2.0, 0.0, 5.0]), "mean 1/3; the third was not asked about"


def test_advantages_of_a_teacher_do_not_depend_on_padding() -> None:
    difference_N = np.array([2.0, 0.0, 0.0, 2.0])  # of responses with 1 and 3 tokens
    # mean 4/4 over tokens; over the 2 x 3 places of a padded batch it would be 4/6
    assert Distilled().token_advantage(difference_N).tolist() == [1.0, -1.0, -1.0, 1.0]

    def change(engine: EngineConfig) -> torch.Tensor:
        model, rows = small_model(), rows_of(num_cross=0)
        lengths = [len(row.response_ids) for row in rows]
        assert len(set(lengths)) > 2
        advantage_N = Distilled().token_advantage(np.sin(np.arange(sum(lengths))))
        parts = np.split(advantage_N, np.cumsum(lengths)[:-1])
        taught = [
            replace(row, advantage=0.0, teacher_advantages=tuple(part)) for row, part in zip(rows, parts, strict=True)
        ]
        run(learner_of(model, engine=engine, **LINEAR), [taught], GRPO)
        return weights(model) - weights(small_model())

    in_one_pass = change(EngineConfig(row_layout="padded"))
    assert_close(change(EngineConfig(row_layout="padded", micro_batch_tokens=1)), in_one_pass)  # a row each: no padding
    assert_close(change(EngineConfig(row_layout="shared_prompts")), in_one_pass)
    assert in_one_pass.abs().max() > 1e-3


@dataclass(frozen=True)
class LlamaTeaches(Distilled):
    """One agent teaches the other whatever they can do, and learns nothing itself."""

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        return {"qwen": "llama"}

    def estimate(self, scored: ScoredStep, state: State) -> tuple[Estimate, State]:
        estimate, after = super().estimate(scored, state)
        nothing = {agent: np.zeros(len(rows)) for agent, rows in scored.responses.items()}
        return replace(estimate, advantages=dict.fromkeys(scored.agents, nothing)), after


@dataclass(frozen=True)
class TeachesItself(Distilled):
    """Nonsense."""

    def teachers(self, scored: ScoredStep, state: State) -> Mapping[str, str]:
        return {"qwen": "qwen"}


@pytest.mark.system
def test_learner_moves_towards_its_teacher(small_plan: Callable[..., Plan]) -> None:
    """Across tokenizers: what the teacher finds less likely at first is sampled less often later."""
    words = ("train.num_steps=24", "train.problems=8", "method.build.problems=4", "rollout.num_samples=8")
    name = f"method.estimate.name={__name__}:LlamaTeaches"
    behind = "pair.agents.qwen.warm_up.num_steps=250"
    planned = small_plan("distil", name, *SHORT, *words, behind, "optimizer.learning_rate=1e-3")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    found = [store.metrics(step)["agents"]["qwen"]["teacher/difference_mean"] for step in range(1, 25)]
    assert np.mean(found[:5]) < -0.2
    assert np.mean(found[-5:]) > 0.95 * np.mean(found[:5]), found
    assert "teacher/difference_mean" not in store.metrics(1)["agents"]["llama"]
    assert store.read_value(1, "teach.qwen", "taught.qwen.json")["teacher"] == "llama"
    assert store.read_value(1, "teach.llama", "taught.llama.json")["teacher"] is None
    rows = store.read_table(1, "rollout.qwen", "rollouts.qwen.parquet")
    taught = store.read_table(1, "teach.qwen", "taught.qwen.parquet")
    assert taught["difference"].map(len).tolist() == rows["token_ids"].map(len).tolist()


def test_teacher_that_is_no_other_agent_is_an_error(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("distil", f"method.estimate.name={__name__}:TeachesItself", *SHORT)
    with pytest.raises(MethodError, match="teachers: got 'qwen' for 'qwen', expected another agent of qwen, llama"):
        run_experiment(planned, DirectRunner())


def test_objectives_of_whole_responses_are_refused() -> None:
    with pytest.raises(ConfigError, match="gives each token an advantage, with objective sequence_clip"):
        compose("tiny", "distil", overrides=["method.objective.name=sequence_clip"])


def test_fields_that_choose_the_teacher_are_part_of_the_id() -> None:
    ids = {experiment_id(compose("tiny", "distil", overrides=words), {}) for words in WORDS}
    assert len(ids) == len(WORDS)


WORDS = [[], ["method.estimate.window=1"], ["method.estimate.metric=positive_rate"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.plan.name=interaction",), "whose teacher scores with the original prompts"),
        (("method.build.drops_equal_rewards=true",), "whose rows also have a teacher's advantages"),
    ],
)
def test_what_a_teacher_cannot_judge_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("tiny", "distil", overrides=list(words))


def test_lone_agent_has_no_teacher() -> None:
    config = compose("tiny", "distil")
    alone = replace(config, pair=replace(config.pair, agents=dict([next(iter(config.pair.agents.items()))])))
    with pytest.raises(ConfigError, match="distilled with one agent, which has no teacher"):
        validate(alone)
