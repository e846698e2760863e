"""Algorithm 1 with one, two and three agents, and with unscored responses."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.planning.compose import compose
from flows.planning.plans import Plan, plan, save_plan
from flows.runs.experiment import run_experiment
from flows.runs.samples import step_samples
from hacpo_core.columns import Ragged
from hacpo_core.config.samplers import TransformersKind
from hacpo_core.engines.sampling.base import Sampled, SampleRequest
from hacpo_core.engines.sampling.transformers_sampler import TransformersSampler
from hacpo_core.errors import EngineError, VerificationError
from hacpo_core.phases.definitions import DEFINITIONS
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.records import SamplingLimits, Verdict
from hacpo_core.store.steps import StepStore
from hacpo_core.verify.pool import VerifierPool
from hacpo_core.verify.process import Worker
from tests.experiments_outcome import findings_of, outcome


def run(planned: Plan) -> dict[str, Any]:
    run_experiment(planned, DirectRunner())
    return outcome(planned)


def metrics_of(planned: Plan, step: int, agent: str) -> dict[str, float]:
    value: dict[str, float] = StepStore(planned.root).metrics(step)["agents"][agent]
    return value


def with_agents(small_models: Path, tmp_path: Path, names: list[str], method: str, *overrides: str) -> Plan:
    """The small pair's settings with a choice of agents, a third family among them."""
    tree = yaml.safe_load((small_models / "small.yaml").read_text(encoding="utf-8"))
    neox = {"family": "gpt_neox", "tokenizer": "word", "hidden_size": 32, "num_layers": 1}
    tree["pair"]["agents"]["neox"] = {
        "tiny": {**neox, "seed": 2},
        "warm_up": {"source": "arithmetic", "template": "{problem}", "num_steps": 60, "learning_rate": 4e-3, "seed": 2},
    }
    tree["pair"]["agents"] = {name: tree["pair"]["agents"][name] for name in names}
    path = tmp_path / f"{'-'.join(names)}.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    words = [f"runtime.runs_dir={small_models}", "tracking.enabled=false", "train.num_steps=2", *overrides]
    planned = plan(compose(str(path), method, overrides=words))
    save_plan(planned)
    return planned


@pytest.mark.slow
def test_three_agents_of_three_families_learn_from_each_other(small_models: Path, tmp_path: Path) -> None:
    names = ["qwen", "llama", "neox"]
    planned = with_agents(small_models, tmp_path, names, "hacpo", "engine.skip_zero_advantage=false")
    run(planned)
    for name in names:
        found = metrics_of(planned, 2, name)
        others = [other for other in names if other != name]
        assert all(f"ratio_from_{other}/mean" in found for other in others)
        assert f"ratio_from_{name}/mean" not in found
        assert all(f"capability/ratio_to_{other}" in found for other in others)
    store = StepStore(planned.root)
    rows = store.read_table(1, "update.neox", "update.neox.parquet")
    assert sorted(rows["agent"].value_counts()) == [16, 16, 16]
    assert sorted(rows["update"].unique()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_hacpo_with_one_agent_is_gspo_to_the_bit(small_models: Path, tmp_path: Path) -> None:
    hacpo = run(with_agents(small_models, tmp_path, ["qwen"], "hacpo"))
    gspo = run(with_agents(small_models, tmp_path, ["qwen"], "gspo"))
    assert [hacpo[key] for key in hacpo if "update" in key] == [gspo[key] for key in gspo if "update" in key]
    assert any("update" in key for key in hacpo)


@pytest.mark.slow
def test_every_metric_has_a_definition(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", "method.objective.cross_bounds=none")
    run(planned)
    defined = {name.replace("<source>", source) for name in DEFINITIONS for source in ("own", "cross")}
    values = [StepStore(planned.root).metrics(step) for step in (1, 2, 3, 4)]
    found = {name for value in values for part in (value["run"], *value["agents"].values()) for name in part}
    assert {name for name in found if not name.startswith("capability/ratio_to_")} <= defined
    samples = step_samples(planned, 2)
    assert {"advantage_for_qwen", "ratio_for_llama", "stopped_for_llama"} <= set(samples.columns)


def unscored_after(num_scored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = VerifierPool.verify

    def verify(self: VerifierPool, texts: Any, golds: Any, **options: Any) -> list[Verdict]:
        verdicts = inner(self, texts, golds, **options)
        return [
            verdict if i < num_scored else Verdict("unscored", None, None, 5.0, "timeout")
            for i, verdict in enumerate(verdicts)
        ]

    monkeypatch.setattr(VerifierPool, "verify", verify)


@pytest.mark.slow
def test_unscored_responses_are_counted_and_train_nobody(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    unscored_after(14, monkeypatch)
    overrides = ("verifier.max_unscored_fraction=0.2", "engine.skip_zero_advantage=false", "train.num_steps=1")
    planned = small_plan("hacpo", *overrides)
    run(planned)
    found = metrics_of(planned, 1, "qwen")
    assert (found["reward/num_unscored"], found["update/num_unscored"]) == (2.0, 4.0)
    rows = StepStore(planned.root).read_table(1, "update.qwen", "update.qwen.parquet")
    assert len(rows) == 2 * 14
    last = StepStore(planned.root).read_table(1, "rollout.qwen", "rollouts.qwen.parquet")["problem_id"].iloc[-1]
    assert not ((rows["problem_id"] == last) & (rows["sample"] >= 2)).any()


def test_too_many_unscored_responses_stop_the_run(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    unscored_after(14, monkeypatch)
    with pytest.raises(VerificationError, match=r"step 1, qwen: 2 of 16 responses are unscored.*resume to try again"):
        run(small_plan("hacpo"))


def test_step_without_a_single_verdict_stops_the_run_whatever_is_allowed(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    unscored_after(0, monkeypatch)
    with pytest.raises(VerificationError, match=r"16 of 16 responses are unscored, expected not all"):
        run(small_plan("hacpo", "verifier.max_unscored_fraction=1", "evaluate.during=[]", "evaluate.final=[]"))


def logprobs_off_by(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sampler report one response's tokens as too likely by `error` nats, the next one's as too unlikely."""
    inner = TransformersSampler.sample

    def sample(self: TransformersSampler, requests: Sequence[SampleRequest], limits: SamplingLimits) -> Sampled:
        found = inner(self, requests, limits)
        moved = [logprobs + np.float32((-1) ** i * error) for i, logprobs in enumerate(found.logprobs)]
        return replace(found, logprobs=Ragged.of(moved, np.float32))

    monkeypatch.setattr(TransformersSampler, "sample", sample)


def sampler_findings(planned: Plan) -> list[tuple[str, int, str]]:
    findings = findings_of(StepStore(planned.root), planned.config)
    return [(f.agent, f.begun_at, f.text) for f in findings if f.rule == "sampler_differs"]


@pytest.mark.parametrize(("error", "is_found"), [(0.01, True), (5e-4, False)])
def test_sampler_that_leaves_the_learner_is_measured_and_moves_no_own_ratio(
    error: float, is_found: bool, small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    logprobs_off_by(error, monkeypatch)
    monkeypatch.setattr(TransformersKind, "samples_as_learner", lambda self, engine: False)
    planned = small_plan("hacpo", "train.num_steps=1", "engine.skip_zero_advantage=false")
    run(planned)
    expected = []
    for agent in ("qwen", "llama"):
        found = metrics_of(planned, 1, agent)
        assert found["sampler/logprob_difference_mean"] == pytest.approx(error, abs=1e-5)
        assert found["ratio/own_noise_rms"] == 0.0, "old log-probabilities are of the pass that trains"
        size = f"{found['sampler/logprob_difference_mean']:.1e}"
        text = f"sampler and learner differ by {size} nats a token, in float32 expected at most 1.0e-03"
        expected.append((agent, 1, text))
    assert sampler_findings(planned) == expected * is_found


@pytest.mark.slow
def test_official_preset_scores_boxes_without_workers_and_bounds_the_kl(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Worker, *arguments: Any, timeout_s: float) -> None:
        raise AssertionError("no worker is needed")

    monkeypatch.setattr(Worker, "call", refuse)
    planned = small_plan("hacpo", "conformance=official", "train.num_steps=2", "engine.skip_zero_advantage=false")
    run(planned)
    store = StepStore(planned.root)
    for step, agent in itertools.product((1, 2), ("qwen", "llama")):
        verdicts = store.read_table(step, f"verify.{agent}", f"verdicts.{agent}.parquet")
        assert set(verdicts["status"]) <= {"correct", "wrong"}
        assert 0.0 <= metrics_of(planned, step, agent)["update/kl_nats"] <= 10.0
    answered = store.read_table(0, "answer.dev.0-8.qwen", "answer.dev.0-8.qwen.parquet")
    assert set(answered["status"]) <= {"correct", "wrong"}
    rewards = [metrics_of(planned, *place)["reward/mean"] for place in itertools.product((1, 2), ("qwen", "llama"))]
    assert max(rewards) > 0, "boxes are read"


@pytest.mark.slow
def test_original_preset_trains_from_short_to_long_and_back(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", "conformance=original", "train.num_steps=1", "engine.skip_zero_advantage=false")
    run(planned)
    store = StepStore(planned.root)
    num_tokens = {}
    for source in ("qwen", "llama"):
        table = store.read_table(1, f"rollout.{source}", f"rollouts.{source}.parquet")
        for problem_id, sample, token_ids in zip(table["problem_id"], table["sample"], table["token_ids"], strict=True):
            num_tokens[source, problem_id, sample] = len(token_ids)
    for agent in ("qwen", "llama"):
        rows = store.read_table(1, f"update.{agent}", f"update.{agent}.parquet")
        keys = zip(rows["agent"], rows["problem_id"], rows["sample"], strict=True)
        rows["sampled"] = [num_tokens[key] for key in keys]
        longest = rows.groupby("update")["sampled"].max().tolist()
        assert len(longest) == 4
        assert longest[0] <= longest[1] and longest[3] <= longest[2]
        assert metrics_of(planned, 1, agent)["update/kl_nats"] >= 0.0


def test_advantage_metrics_are_over_scored_responses(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = VerifierPool.verify

    def verify(self: VerifierPool, texts: Any, golds: Any, **options: Any) -> list[Verdict]:
        inner(self, texts, golds, **options)
        right, wrong = Verdict("correct", 1.0, "4", 0.1), Verdict("wrong", 0.0, "5", 0.1)
        unscored = Verdict("unscored", None, None, 5.0, "timeout")
        return [right, wrong, wrong, wrong] * 3 + [right, wrong, unscored, unscored]

    monkeypatch.setattr(VerifierPool, "verify", verify)
    words = ("verifier.max_unscored_fraction=0.2", "train.num_steps=1")
    planned = small_plan("gspo", *words, "evaluate.during=[]", "evaluate.final=[]")
    run(planned)
    found = metrics_of(planned, 1, "qwen")
    # Three problems: mean 1/4, sigma 1/2, so 1.5 and three times -0.5. The fourth: mean 1/2, sigma sqrt(1/2): +-0.7071.
    # Sum of squares 3 x 3 + 1 = 10 over 14 responses: 0.845154 squared; over all 16 it would be 0.790569.
    assert found["advantage/own_mean"] == pytest.approx(0.0, abs=1e-5)
    assert found["advantage/own_std"] == pytest.approx(0.845154, abs=1e-5)


def test_complete_experiment_is_returned_without_running_again(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1")
    first = run_experiment(planned, DirectRunner())
    before = {path: path.stat().st_mtime_ns for path in planned.root.rglob("*")}
    assert run_experiment(planned, DirectRunner()) == first
    assert {path: path.stat().st_mtime_ns for path in planned.root.rglob("*")} == before


def test_weights_that_became_no_numbers_stop_the_run(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan(
        "gspo", "optimizer.learning_rate=1e3", "optimizer.weight_decay=1e3", "engine.skip_zero_advantage=false"
    )  # every update multiplies the weights by a million
    with pytest.raises(EngineError, match="got nan or infinite log-probabilities|gradient norm is nan"):
        run(planned)
