"""ILR's interaction: who cooperates, who competes, and what becomes of the responses."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.errors import ConfigError
from hacpo_core.methods.plan import PlanTask
from hacpo_core.methods.plans.interaction import INTERACTION, Interaction, chance
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import Gold, Message, Problem, SamplingLimits
from hacpo_core.store.steps import StepStore
from tests.methods.test_partners import Rewards, responses

PROBLEMS = [Problem(name, (Message("user", f"Solve {name}."),), Gold("1"), "") for name in ("p", "q")]
TASK = PlanTask(1, "a", PROBLEMS, 4, SamplingLimits(1.0, 1.0, 8), 0, sources=("a",))
LONG = "rollout.max_prompt_tokens=400"
SHORT = ("evaluate.during=[]", "evaluate.final=[]", "train.num_steps=2", "method.build.problems=1")


def second_round(rewards: Rewards, **fields: int) -> dict[tuple[str, int], str]:
    """What is asked in the second round, by problem and sample."""
    specs, state = Interaction(**fields).plan(replace(TASK, round=1, verified=responses(rewards)), {})
    assert state == {}
    assert {spec.tag for spec in specs} <= {INTERACTION}
    return {(spec.problem.id, spec.sample): spec.problem.messages[-1].content for spec in specs}


def test_chance_is_one_half_where_ability_meets_difficulty() -> None:
    assert chance(0.3, 0.3) == 0.5
    assert chance(1.0, 0.0) == pytest.approx(1 / (1 + 2.718281828**-1.7))


def test_first_round_samples_the_rest_of_the_group_alone() -> None:
    specs, _ = Interaction(num_interactive=2).plan(TASK, {})
    assert [(spec.problem.id, spec.sample, spec.tag) for spec in specs] == [(p, i, "") for p in "pq" for i in (0, 1)]
    assert specs[0].problem is PROBLEMS[0]


def test_agent_cooperates_on_what_it_can_hardly_solve_and_competes_on_the_rest() -> None:
    asked = second_round({"a": {"p": (0.0, 0.0), "q": (1.0, 1.0)}, "b": {"p": (0.0, 0.0), "q": (1.0, 1.0)}})
    assert sorted(asked) == [("p", 2), ("p", 3), ("q", 2), ("q", 3)]
    # ability of a: 2 of 4, log-odds 0; p: none of 4 right, log-odds -2.2; q: all, +2.2
    assert asked["p", 2] == "Solve p.\n\nAnother solver thought:\nx\n\nUse what is right in it and solve the problem."
    assert "Another solver answered:" in asked["q", 2]


def test_idea_is_cut_and_braces_in_it_are_text() -> None:
    verified = responses({"a": {"p": (0.0,), "q": (0.0,)}, "b": {"p": (0.0,), "q": (0.0,)}})
    verified["b"] = replace(verified["b"], text=(r"\boxed{idea} and more", "y"))
    specs, _ = Interaction(max_idea_chars=12).plan(replace(TASK, round=1, verified=verified), {})
    assert "\n\\boxed{idea}\n" in specs[0].problem.messages[-1].content


def test_group_is_filled_alone_without_an_idea() -> None:
    silent = responses({"a": {"p": (0.0,)}, "b": {"p": (0.0,)}})
    silent["b"] = replace(silent["b"], text=(" ",))
    for verified in (responses({"a": {"p": (0.0,)}}), silent):
        specs, _ = Interaction().plan(replace(TASK, round=1, verified=verified, problems=PROBLEMS[:1]), {})
        assert [(spec.problem, spec.sample, spec.tag) for spec in specs] == [(PROBLEMS[0], i, "") for i in (2, 3)]


def test_shared_rollouts_and_whole_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompts differ from the partners' prompts"):
        compose("tiny", "hacpo", overrides=["method.plan.name=interaction"])
    with pytest.raises(ConfigError, match="num_interactive: got 8 of 8 responses to a problem, expected fewer"):
        compose("tiny", "ilr_interaction", overrides=["method.plan.num_interactive=8"])


@pytest.mark.slow
def test_rows_keep_the_prompt_that_they_were_sampled_behind(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("ilr_interaction", *SHORT, LONG)
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    first = store.read_table(1, "rollout.qwen", "rollouts.qwen.parquet")
    second = store.read_table(1, "rollout-2.qwen", "rollouts-2.qwen.parquet")
    assert set(first["tag"]) == {""}
    assert set(second["tag"]) == {INTERACTION}
    assert second["prompt_ids"].map(len).min() > first["prompt_ids"].map(len).max()
    verdicts = store.read_table(1, "verify.qwen", "verdicts.qwen.parquet")
    capability = store.metrics(1)["agents"]["qwen"]["capability/batch"]
    assert capability == pytest.approx(verdicts["raw_reward"].mean()), "of what was sampled alone"


@pytest.mark.slow
def test_prompts_that_are_too_long_are_left_out_and_counted(
    small_plan: Callable[..., Plan], caplog: pytest.LogCaptureFixture
) -> None:
    planned = small_plan("ilr_interaction", *SHORT)
    with caplog.at_level(logging.WARNING, logger="hacpo_core.phases.rollout"):
        run_experiment(planned, DirectRunner())
    assert any(
        "responses are left out because their prompts exceed the 40 tokens" in r.getMessage() for r in caplog.records
    )
    assert len(StepStore(planned.root).read_table(1, "rollout-2.qwen", "rollouts-2.qwen.parquet")) == 0
