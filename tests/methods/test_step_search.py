"""SAGE-RL's plan in whole trainings: tags, ratios, figures, kills; the search itself is in tests/engines."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from hacpo_core.errors import ConfigError
from hacpo_core.methods.plan import PlanTask
from hacpo_core.methods.plans.step_search import PartlySearched
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import Gold, Message, Problem, SamplingLimits, StepSearch
from hacpo_core.responses import SEARCHED
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import outcome
from tests.test_resume import run_process

pytestmark = pytest.mark.slow

SHORT = ("evaluate.during=[]", "evaluate.final=[]", "train.num_steps=2", "engine.skip_zero_advantage=false")
LINES = 'method.plan.step_end="\\n"'
"""the small agents write lines"""
TASK = PlanTask(
    1, "a", [Problem(p, (Message("user", p),), Gold("1"), "") for p in "pq"], 4, SamplingLimits(1.0, 1.0, 8), 0
)


def trained(planned: Plan) -> StepStore:
    run_experiment(planned, DirectRunner())
    return StepStore(planned.root)


def test_last_responses_of_each_problem_are_searched_for() -> None:
    specs, _ = PartlySearched(num_searched=1, num_beams=3, num_candidates=6).plan(TASK, {})
    assert [(spec.problem.id, spec.sample, spec.tag) for spec in specs] == [
        (p, sample, SEARCHED if sample == 3 else "") for p in "pq" for sample in range(4)
    ]
    searches = {spec.search for spec in specs if spec.tag}
    assert searches == {StepSearch(3, 6, 256, "\n\n", "</think>")}
    assert all(spec.search is None for spec in specs if not spec.tag)


def test_group_without_an_ordinary_response_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method.plan.num_searched: got 8 of 8 responses to a problem, expected few"):
        compose("tiny", "sage", overrides=["method.plan.num_searched=8"])
    with pytest.raises(ConfigError, match=r"method.plan.step_end: got '', expected the text"):
        compose("tiny", "sage", overrides=["method.plan.step_end=''"])


@pytest.mark.parametrize("method", ["sage", "sage_grpo", "hacpo"])
def test_method_trains_on_searched_rows_at_the_policys_own_ratio(method: str, small_plan: Callable[..., Plan]) -> None:
    planned = small_plan(method, "method.plan.name=step_search", LINES, *SHORT)
    store = trained(planned)
    for step in (1, 2):
        for agent in ("qwen", "llama"):
            values = store.metrics(step)["agents"][agent]
            assert np.isfinite(list(values.values())).all()
            table = store.read_table(step, f"rollout.{agent}", f"rollouts.{agent}.parquet")
            assert table.groupby("tag").size().to_dict() == {"": 8, SEARCHED: 8}
            searched = table[table.tag == SEARCHED]
            assert values["search/num_responses"] == 8
            assert (
                values["search/sampled_tokens"] == searched["num_sampled"].sum() > searched["token_ids"].map(len).sum()
            )
            assert values["tokens/sampled"] == table["num_sampled"].sum()
            assert values["response/length_tokens"] == pytest.approx(table["token_ids"].map(len).mean())
            verdicts = store.read_table(step, f"verify.{agent}", f"verdicts.{agent}.parquet")
            rewards = verdicts["raw_reward"][(table.tag == SEARCHED).to_numpy()]
            assert values["reward/search_mean"] == pytest.approx(rewards.mean())
            rows = store.read_table(step, f"update.{agent}", f"update.{agent}.parquet")
            first = rows[(rows["agent"] == agent) & (rows["update"] == 0) & (rows["sample"] >= 2)]
            assert len(first) > 0
            assert first["ratio"].to_numpy() == pytest.approx(np.ones(len(first)), abs=1e-4)
    assert values["search/stopped_share"] > 0


def test_capability_reads_ordinary_rows_alone(small_plan: Callable[..., Plan]) -> None:
    store = trained(small_plan("hacpo", "method.plan.name=step_search", LINES, *SHORT, "train.num_steps=1"))
    values = store.metrics(1)["agents"]["qwen"]
    assert values["capability/batch"] == pytest.approx(values["reward/ordinary_mean"])


def test_ordinary_rows_are_those_of_a_run_without_searches(small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    words = (*SHORT, "train.num_steps=1")
    runs = {
        "with": small_plan("gspo", *words, "method.plan.name=step_search", LINES, runs_dir=tmp_path / "with"),
        "without": small_plan("gspo", *words, "rollout.num_samples=2", runs_dir=tmp_path / "without"),
    }
    stores = {name: trained(planned) for name, planned in runs.items()}
    for agent in ("qwen", "llama"):
        tables = {
            name: store.read_table(1, f"rollout.{agent}", f"rollouts.{agent}.parquet") for name, store in stores.items()
        }
        ordinary, expected = tables["with"][tables["with"].tag == ""], tables["without"]
        for column in ("problem_id", "sample", "token_ids", "logprobs"):
            assert list(map(str, ordinary[column])) == list(map(str, expected[column]))
        assert "num_sampled" not in expected


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["sage", "hacpo"])
def test_training_with_searches_is_killed_and_resumed_to_the_bit(
    method: str, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    words = ("method.plan.name=step_search", LINES, *SHORT)
    reference = small_plan(method, *words, runs_dir=tmp_path / "reference")
    exit_code, counts = run_process(reference)
    assert exit_code == 0
    for kind in ("before sampling", "after optimizer step"):
        place = kind, random.Random(f"{method} {kind}").randint(2, counts[kind])
        killed = small_plan(method, *words, runs_dir=tmp_path / kind)
        assert run_process(killed, place)[0] == -signal.SIGKILL, place
        assert run_process(killed)[0] == 0, place
        assert outcome(killed) == outcome(reference), place
