"""The example in one file trains the weights that the library trains.

Both add up in float32, in different orders, so their gradients differ in the last bits. AdamW divides a gradient by its
own size: with an epsilon of 1e-8, a gradient that is nothing but rounding is a step of full size, and weights that
should be equal end up 1e-5 apart. An epsilon of 1e-5, above the rounding, leaves differences of one unit in the last
place (1.2e-7 for a weight of 1). Answers are compared as text, because the example has no algebra.

The clips are set so that every bound is met: by some rows, not by all.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.hacpo_in_one_file import Agent, Problem, Response, Settings, advantages, load_agent, retokenize, train
from flows.planning.compose import compose
from flows.planning.plans import Plan, models_dir, plan, save_plan
from flows.runs.experiment import run_experiment
from hacpo_core.config import ExperimentConfig
from hacpo_core.data.training import load_training
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.initial_model import InitialModel
from hacpo_core.tiny.tokenizers import build_tokenizer

pytestmark = pytest.mark.slow

NUM_STEPS = 10
TOLERANCE = 1e-6
OVERRIDES = (
    f"train.num_steps={NUM_STEPS}",
    "seed=1",
    "rollout.max_response_tokens=24",
    "optimizer.learning_rate=1.0e-4",
    "optimizer.epsilon=1.0e-5",
    "reward.functions=[exact_match]",
    *("method.objective.sequence_low=0.005", "method.objective.sequence_high=0.005"),
    *("method.objective.cross_floor=0.5", "method.objective.cross_step=0.1"),
    *("evaluate.during=[]", "evaluate.final=[]", "tracking.enabled=false"),
)

Weights = dict[str, dict[str, Tensor]]
"""by agent and parameter"""


def settings_of(config: ExperimentConfig) -> Settings:
    """The example's settings, named as the library names them."""
    estimate, objective, optimizer = config.method.estimate, config.method.objective, config.optimizer
    return Settings(
        seed=config.seed,
        num_problems=config.train.problems,
        num_samples=config.rollout.num_samples,
        max_response_tokens=config.rollout.max_response_tokens,
        window=estimate.window,
        own_low=objective.sequence_low,
        own_high=objective.sequence_high,
        cross_floor=objective.cross_floor,
        cross_step=objective.cross_step,
        alpha=objective.cross_exponent,
        minibatch_problems=config.method.build.problems,
        learning_rate=optimizer.learning_rate,
        betas=(optimizer.beta1, optimizer.beta2),
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
    )


def initial_folders(config: ExperimentConfig) -> dict[str, Path]:
    agents = config.pair.agents.items()
    return {name: InitialModel(name, agent, models_dir(config)).make() for name, agent in agents}


def weights_in(folders: dict[str, Path]) -> Weights:
    return {name: load_file(folder / "model.safetensors") for name, folder in folders.items()}


def trained_by_example(config: ExperimentConfig, settings: Settings) -> Weights:
    agents = [load_agent(name, folder, settings) for name, folder in initial_folders(config).items()]
    problems = [Problem(p.id, p.messages[-1].content, p.answer) for p in load_training(config.data).problems]
    train(agents, problems, NUM_STEPS, settings)
    return {agent.name: {name: p.detach() for name, p in agent.model.named_parameters()} for agent in agents}


def max_differences(one: Weights, other: Weights) -> dict[str, float]:
    assert {name: set(weights) for name, weights in one.items()} == {name: set(other[name]) for name in other}
    return {
        agent: max(float((weight - other[agent][name]).abs().max()) for name, weight in weights.items())
        for agent, weights in one.items()
    }


@pytest.fixture(scope="module")
def trained(small_models: Path) -> Plan:
    """The small pair, trained by the library."""
    words = [f"runtime.runs_dir={small_models}", *OVERRIDES]
    planned = plan(compose(str(small_models / "small.yaml"), "hacpo", overrides=words))
    save_plan(planned)
    run_experiment(planned, DirectRunner())
    return planned


@pytest.fixture(scope="module")
def by_library(trained: Plan) -> Weights:
    folder = trained.root / "checkpoints" / f"{NUM_STEPS:06d}"
    return weights_in({name: folder / name for name in trained.config.pair.agents})


def test_example_in_one_file_trains_the_same_weights(trained: Plan, by_library: Weights) -> None:
    config = trained.config
    assert (config.conformance, config.engine.dtype, config.engine.device) == ("paper", "float32", "cpu")
    found = trained_by_example(config, settings_of(config))
    differences = max_differences(found, by_library)
    moved = max_differences(weights_in(initial_folders(config)), by_library)
    assert all(difference <= TOLERANCE for difference in differences.values()), differences
    assert all(distance >= 1000 * TOLERANCE for distance in moved.values()), moved


@pytest.mark.parametrize(
    "change",
    [{"alpha": 0.0}, {"cross_step": 0.0}, {"own_low": 1.0, "own_high": 1e9}, {"window": 1}],
    ids=lambda change: " ".join(change),
)
def test_example_with_another_setting_trains_other_weights(
    trained: Plan, by_library: Weights, change: dict[str, Any]
) -> None:
    found = trained_by_example(trained.config, replace(settings_of(trained.config), **change))
    differences = max_differences(found, by_library)
    assert all(difference >= 100 * TOLERANCE for difference in differences.values()), differences


def test_defaults_of_the_example_are_the_tiny_pairs() -> None:
    assert settings_of(compose("tiny", "hacpo")) == Settings()


def test_baseline_above_one_is_the_own_mean_and_equal_rewards_carry_nothing() -> None:
    reward_PAG = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])
    ratio_AA = torch.tensor([[1.0, 10.0], [0.1, 1.0]])
    # mu[0] = (0.5 + 10 * 0.5) / 2 = 2.75, so 0.5;  mu[1] = (0.1 * 0.5 + 0.5) / 2 = 0.275;  sigma = sqrt(1 / 3)
    expected = torch.tensor([[[0.86602, -0.86602], [1.25573, -0.47631]], [[0.0, 0.0], [0.0, 0.0]]])
    torch.testing.assert_close(advantages(reward_PAG, ratio_AA), expected, atol=1e-5, rtol=0.0)


def test_response_without_text_gives_no_row_unless_it_is_eos_alone() -> None:
    learner = Agent("learner", None, build_tokenizer("merged"), None)  # type: ignore[arg-type]
    eos_id = learner.tokenizer.eos_token_id

    def row(token_ids: list[int], text: str, *, is_finished: bool) -> list[int]:
        return retokenize(Response(token_ids, text, -1.0, is_finished, 0.0), learner, Settings())

    ten = learner.tokenizer.convert_tokens_to_ids("10")
    assert row([5, 6, 7], "10", is_finished=True) == [ten, eos_id]
    assert row([5, 6], "10", is_finished=False) == [ten]
    assert row([7], "", is_finished=True) == [eos_id]
    assert row([3, 7], "", is_finished=True) == []
    assert row([3, 3], "", is_finished=False) == []
