"""A user's own class at each part: it does what it says, and is killed and resumed to the bit with its state."""

import random
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from flows.runs.samples import step_samples
from hacpo_core.errors import ConfigError, MethodError
from hacpo_core.methods.checks import errors_of
from hacpo_core.methods.estimate import Estimate, ScoredStep
from hacpo_core.methods.objective import RowKind
from hacpo_core.methods.plan import PlanTask, SampleSpec
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import RowKey
from hacpo_core.store.steps import StepStore
from tests import plugins
from tests.experiments_outcome import outcome
from tests.test_resume import run_process

pytestmark = pytest.mark.slow

UNSCORED = "verifier.max_unscored_fraction=0.9"
PLUGINS = {
    "estimate": ["method.estimate.name=tests.plugins:RunningMean", "method.estimate.share=0.25"],
    "plan": ["method.plan.name=tests.plugins:TwoTags", "method.build.problems=1"],
    "rounds": ["method.plan.name=tests.plugins:Resample"],
    "shape": ["method.estimate.name=tests.plugins:Brief"],
    "build": ["method.build.name=tests.plugins:WithOld"],
    "objective": ["method.objective.name=tests.plugins:HalfForeign"],
    "difficulty": ["method.estimate.name=difficulty_weighted", "method.estimate.anchor=kalman"],
    "interaction": [
        *("method.shares_rollouts=false", "method.plan.name=interaction", "rollout.max_prompt_tokens=400"),
        *("method.estimate.name=calibrated", "method.estimate.baseline=own", "method.build.problems=1"),
        *("method.objective.name=sequence_clip",),
    ],
    "bandit": ["method.build.name=bandit"],
    "teacher": [
        *("method.shares_rollouts=false", "method.estimate.name=distilled", "method.estimate.baseline=own"),
        *("method.objective.name=token_clip",),
    ],
    "reward": ["reward.functions=[verifier,tests.plugins:brevity]", "reward.weights=[3,1]", UNSCORED],
}
SHORT = ("evaluate.during=[]", "evaluate.final=[]")


def trained(planned: Plan) -> StepStore:
    run_experiment(planned, DirectRunner())
    return StepStore(planned.root)


def states(store: StepStore, num_steps: int) -> dict[str, Any]:
    """What every part remembered after each step."""
    files = {"rollout": "rollouts", "update": "update"}
    found = {}
    for step in range(1, num_steps + 1):
        for phase in store.committed(step):
            kind, _, agent = phase.partition(".")
            file = re.sub("^(rollout|update)", lambda match: files[match[0]], kind)
            name = "advantages.json" if kind == "advantage" else f"{file}.{agent}.json"
            if kind.partition("-")[0] in (*files, "advantage"):
                value = store.read_value(step, phase, name)
                found[f"{step} {phase}"] = value["state"], value.get("objective_state")
    return found


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", PLUGINS)
def test_method_with_a_users_class_is_killed_and_resumed_to_the_bit(
    part: str, small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    words = (*PLUGINS[part], *SHORT)
    reference = small_plan("hacpo", *words, runs_dir=tmp_path / "reference")
    exit_code, counts = run_process(reference)
    assert exit_code == 0
    expected = outcome(reference), states(StepStore(reference.root), 4)
    assert any(expected[1].values()), "something is remembered: by the user's class, or the capability window"
    kinds = ["after phase", "before commit", "after rename", "after optimizer step", "before sampling"]
    places = [(kind, random.Random(f"{part} {kind}").randint(2, counts[kind])) for kind in kinds]
    for position, place in enumerate(random.Random(part).sample(places, 3)):
        killed = small_plan("hacpo", *words, runs_dir=tmp_path / f"killed-{position}")
        assert run_process(killed, place)[0] == -signal.SIGKILL, place
        assert run_process(killed)[0] == 0, place
        assert (outcome(killed), states(StepStore(killed.root), 4)) == expected, place


def test_estimator_remembers_from_step_to_step(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *PLUGINS["estimate"], *SHORT)
    store = trained(planned)
    mean = 0.0
    for step in range(1, 5):
        found = store.metrics(step)["agents"]["qwen"]
        mean = 0.75 * mean + 0.25 * found["reward/mean"]
        assert found["running/mean"] == pytest.approx(mean)
        table = store.read_table(step, "advantage", "advantages.parquet")
        rewards = store.read_table(step, "verify.qwen", "verdicts.qwen.parquet")["raw_reward"]
        of_llama = table[(table.learner == "llama") & (table.agent == "qwen")]["advantage"]
        assert of_llama.to_numpy() == pytest.approx(rewards.to_numpy() - mean)


def test_plan_with_two_tags_samples_both_and_only_ordinary_rows_count_in_means(small_plan: Callable[..., Plan]) -> None:
    words = ("train.num_steps=1", "engine.skip_zero_advantage=false")
    planned = small_plan("hacpo", *PLUGINS["plan"], *SHORT, *words)
    store = trained(planned)
    table = store.read_table(1, "rollout.qwen", "rollouts.qwen.parquet")
    assert table.groupby("tag").size().to_dict() == {"": 16, "short": 4}
    lengths = table["token_ids"].map(len)
    assert lengths[table.tag == "short"].max() <= 8 < lengths[table.tag == ""].max()
    verdicts = store.read_table(1, "verify.qwen", "verdicts.qwen.parquet")
    capability = store.metrics(1)["agents"]["qwen"]["capability/batch"]
    assert capability == pytest.approx(verdicts["raw_reward"][(table.tag == "").to_numpy()].mean())
    rows = store.read_table(1, "update.llama", "update.llama.parquet")
    assert rows["problem_id"].nunique() > 1
    assert (rows["agent"] == "qwen").any()


def test_groups_of_equal_rewards_are_sampled_again_by_what_all_agents_were_judged(
    small_plan: Callable[..., Plan],
) -> None:
    planned = small_plan("hacpo", *PLUGINS["rounds"], *SHORT)
    store = trained(planned)
    num_again = 0
    for step in range(1, 5):
        phases = [f"{kind}{suffix}.qwen" for suffix in ("", "-2", "-3") for kind in ("rollout", "verify")]
        assert [phase for phase in store.committed(step) if "qwen" in phase][:6] == phases
        samples = step_samples(planned, step)
        for n in (1, 2):
            before = samples[samples["sample"] < 4 * n].groupby("problem_id")["raw_reward"].nunique()
            again = samples[samples["sample"].between(4 * n, 4 * n + 3)].groupby(["problem_id", "agent"]).size()
            assert again.to_dict() == {(p, agent): 4 for p in before[before == 1].index for agent in ("qwen", "llama")}
            num_again += len(before[before == 1])
        metrics = store.metrics(step)["agents"]["qwen"]
        own = samples[samples.agent == "qwen"]
        assert metrics["reward/mean"] == pytest.approx(own["raw_reward"].mean())
        rows = store.read_table(step, "update.llama", "update.llama.parquet")
        assert set(rows[rows.agent == "qwen"]["sample"]) <= set(own["sample"])
    assert num_again > 0, "some groups are alike, or nothing is tested"
    assert store.read_value(4, "rollout-3.qwen", "rollouts-3.qwen.json")["state"] == {"again": num_again}


def test_shaped_rewards_make_advantages_and_raw_ones_capability(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *PLUGINS["shape"], *SHORT, "train.num_steps=1")
    store = trained(planned)
    samples = step_samples(planned, 1)
    lengths = store.read_table(1, "rollout.qwen", "rollouts.qwen.parquet")["token_ids"].map(len)
    own = samples[samples.agent == "qwen"]
    assert (own["raw_reward"] - own["reward"]).to_numpy() == pytest.approx(0.01 * lengths.to_numpy())
    assert store.metrics(1)["agents"]["qwen"]["capability/batch"] == pytest.approx(own["raw_reward"].mean())
    by_problem = own.groupby("problem_id")
    spread = by_problem["reward"].transform("nunique") > 1
    ranks = [by_problem[column].rank() for column in ("reward", "advantage_for_qwen")]
    differ = spread & (samples.groupby("problem_id")["raw_reward"].transform("nunique") > 1)[own.index]
    assert differ.any()
    assert ranks[0][differ].tolist() == ranks[1][differ].tolist()


def test_rows_of_the_step_before_are_trained_on_once_more(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *PLUGINS["build"], *SHORT, "engine.skip_zero_advantage=false")
    store = trained(planned)
    first, second = (store.read_table(step, "update.qwen", "update.qwen.parquet") for step in (1, 2))
    assert set(first["kind"]) == {RowKind.OWN, RowKind.FOREIGN}
    old = second[second.kind == RowKind.OLD]
    assert (len(old), set(old["step"]), set(old["agent"])) == (4, {1}, {"qwen"})
    keys = ["agent", "problem_id", "sample"]
    then = store.read_table(1, "advantage", "advantages.parquet")
    then = old.merge(then[then.learner == "qwen"], on=keys, suffixes=("", "_then"))
    assert then["advantage"].tolist() == then["advantage_then"].tolist()
    assert "ratio_old/mean" in store.metrics(2)["agents"]["qwen"]


def test_objective_treats_others_rows_in_its_own_way(small_plan: Callable[..., Plan], tmp_path: Path) -> None:
    words = (*SHORT, "engine.skip_zero_advantage=false")
    half, none = (
        small_plan("hacpo", *PLUGINS["objective"], f"method.objective.share={share}", *words, runs_dir=tmp_path / share)
        for share in ("0.5", "0.0")
    )
    for planned, is_used in ((half, True), (none, False)):
        steps = [trained(planned).metrics(step)["agents"]["qwen"] for step in range(1, 5)]
        assert any(found["update/cross_objective"] != 0.0 for found in steps) is is_used
    rows = StepStore(half.root).read_table(1, "update.qwen", "update.qwen.parquet")
    assert rows["rewarded"].tolist() == (rows["advantage"] > 0).astype(float).tolist()
    found = StepStore(half.root).metrics(1)["agents"]["qwen"]["objective/rewarded"]
    assert found == pytest.approx(rows["rewarded"].mean()) and 0.0 < found < 1.0


def test_own_reward_is_mixed_with_the_verdict_and_may_leave_responses_unscored(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *PLUGINS["reward"], *SHORT, "train.num_steps=1")
    store = trained(planned)
    table = store.read_table(1, "rollout.qwen", "rollouts.qwen.parquet")
    verdicts = store.read_table(1, "verify.qwen", "verdicts.qwen.parquet")
    has_five = table["problem_id"].str.contains("5")
    assert (verdicts["status"] == "unscored").tolist() == has_five.tolist()
    share = (4 * verdicts["raw_reward"] - 1 / (1 + table["text"].map(len)))[~has_five]
    assert set(share.round(9)) <= {0.0, 3.0}
    assert 0 < len(share) < 16


def test_class_that_is_no_implementation_is_refused(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torn.py").write_text("1 / 0", encoding="utf-8")
    for word, message in {
        "method.plan.name=nowhere:Nothing": r"nowhere:Nothing cannot be imported .*; put the folder of nowhere on PYTH",
        "method.plan.name=torn:Torn": r"torn:Torn cannot be imported \(ZeroDivisionError: .* by zero\); fix torn$",
        "method.plan.name=nothing": r"got 'nothing', expected one of every_problem, dynamic_sampling, step_search",
        "method.plan.name=tests.plugins:RunningMean": r"method.plan.name: .* is not of class SamplingPlan; derive a",
        "method.estimate.name=hacpo_core.methods.estimate:Estimator": "lacks estimate; implement it",
    }.items():
        with pytest.raises(ConfigError, match=message):
            small_plan("hacpo", word)


def test_fields_of_a_users_class_are_checked_and_named(small_plan: Callable[..., Plan]) -> None:
    with pytest.raises(ConfigError, match=r"method.estimate.share: got 1.5, expected a value in \(0, 1\]"):
        small_plan("hacpo", "method.estimate.name=tests.plugins:RunningMean", "method.estimate.share=1.5")
    with pytest.raises(ConfigError, match=r"method.estimate.window \(in the command line\): .*has no such field, it"):
        small_plan("hacpo", "method.estimate.name=tests.plugins:RunningMean", "method.estimate.window=3")
    ids = {small_plan("hacpo", *PLUGINS["estimate"][:1], f"method.estimate.share={share}").id for share in (0.5, 0.25)}
    assert len(ids) == 2, "they are part of the id"


def carried_by(scored: ScoredStep, num_rows: int = 16) -> Estimate:
    """A right estimate, but for the number of its rows."""
    return Estimate({k: {j: np.ones(num_rows) for j in scored.agents} for k in scored.agents})


def spec_of(task: PlanTask, **changes: Any) -> SampleSpec:
    return SampleSpec(**{"problem": task.problems[0], "sample": 0, "limits": task.limits, **changes})


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_short_memory_in_a_class_is_no_fault_of_the_class(error: Exception) -> None:
    with pytest.raises(type(error)), errors_of("method.objective (mine)"):  # a MethodError is not tried again
        raise error


def one_row_twice(history: Any) -> Any:
    return [list(history.responses(1, "qwen").row_keys())[:1] * 2], {}


WRONG: dict[str, list[tuple[str, Any, str]]] = {
    "estimate:NonsenseShape": [
        ("returned", None, r"shape: TypeError: 'NoneType' object is not iterable \(what it returned is of another"),
        ("returned", {"qwen": np.ones(3)}, r"rewards of qwen is float64 of shape \(3,\), expected 16 floats"),
    ],
    "estimate:Nonsense": [
        ("returned", (Estimate({}), {}), r"advantages\['qwen'\] lacks llama, qwen; add them"),
        ("returned", lambda s: (carried_by(s, 3), {}), "advantages of qwen for qwen is float64"),
        ("returned", lambda s: (carried_by(s), {"a": {1, 2}}), r"state\['a'\] is of type set, expected JSON values"),
        ("returned", lambda s: 1 / 0, r"ZeroDivisionError: division by zero \(.*test_plugins.py, line"),
        (
            "returned",
            lambda s: (replace(carried_by(s), figures={"qwen": {"a/b": float("nan")}}), {}),
            "figures of qwen: 'a/b' is nan, expected a finite number",
        ),
    ],
    "plan:NonsensePlan": [
        ("returned", ([], {}), "returned no sample specs, expected at least one"),
        ("returned", lambda t: ([spec_of(t)] * 2, {}), "expected problems of the step, each sample once"),
        (
            "returned",
            lambda t: ([spec_of(t, limits=replace(t.limits, max_tokens=0))], {}),
            "expected those of rollout with 1 to 40 tokens",
        ),
    ],
    "build:NonsenseBuilder": [
        ("returned", ([], {}), "returned an empty mini-batch or none"),
        ("returned", ([[RowKey(2, "qwen", "p", 0)]], {}), "took RowKey.* of steps up to 1"),
        ("returned", one_row_twice, "took RowKey.*, expected each row once in a mini-batch"),
    ],
    "objective:NonsenseObjective": [
        ("returned", None, "surrogate: AttributeError: 'NoneType' object has no attribute 'value_B'"),
        ("returned", lambda s: replace(s, value_B=s.value_B[:1]), r"value: got \(1,\), expected"),
        ("returned", lambda s: replace(s, value_B=s.value_B.detach()), "value has no gradient; compute it from"),
        ("weights", lambda w: w[:1], "row_weights: got .* expected a finite number for each"),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_part_that_returns_nonsense_is_refused_in_one_sentence(
    name: str, small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    part, _, cls = name.partition(":")
    monkeypatch.setattr(plugins.NonsenseObjective, "returned", lambda surrogate: surrogate)
    failures = []
    for number, (attribute, value, message) in enumerate(WRONG[name]):
        with monkeypatch.context() as patch:
            patch.setattr(getattr(plugins, cls), attribute, value)
            words = (f"method.{part}.name=tests.plugins:{cls}", *SHORT)
            planned = small_plan("hacpo", *words, runs_dir=tmp_path / f"{number}")
            with pytest.raises(MethodError) as caught:
                trained(planned)
        said = str(caught.value)
        if not re.search(message, said) or "\n" in said or f"method.{part} (tests.plugins:{cls})" not in said:
            failures.append((message, said))
    assert not failures


def test_weight_of_an_estimator_moves_every_objective(small_plan: Callable[..., Plan], tmp_path: Any) -> None:
    for name in ("grpo", "cispo", "sapo", "gmpo", "gspo"):
        norms = []
        for weight in (1.0, 3.0):
            plugins.Weighted.weight = weight
            planned = small_plan(
                name, "method.estimate.name=tests.plugins:Weighted", *SHORT, "train.num_steps=1",
                "engine.skip_zero_advantage=false", runs_dir=tmp_path / f"{name}{weight}",
            )  # fmt: skip
            rows = trained(planned).read_value(1, "update.qwen", "update.qwen.json")["minibatches"]
            norms.append(rows[0]["grad_norm"])
        assert norms[1] == pytest.approx(3 * norms[0], rel=1e-3), name
