"""Evaluations: in shards that change no bit, going on where they were, sampled by seed, and read as tables."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from flows.planning.compose import compose
from flows.planning.plans import Plan, plan, save_plan
from flows.runs.evaluate import run_evaluation, with_benchmarks
from flows.runs.experiment import evaluate_agents, run_experiment
from flows.runs.opening import open_experiment
from flows.runs.samples import benchmark_samples
from hacpo_core.config.samplers import TransformersKind
from hacpo_core.errors import ConfigError, StoreError, VerificationError
from hacpo_core.evaluation.run import finish_evaluation, question_digest, start_evaluation
from hacpo_core.evaluation.table import read_evaluations, read_responses
from hacpo_core.phases.runner import DirectRunner, Phase
from hacpo_core.placement.agents import Agent
from hacpo_core.records import Verdict
from hacpo_core.verify.pool import VerifierPool

pytestmark = pytest.mark.slow

SAMPLED = (
    *("evaluate.during=[]", "evaluate.final=[test]", "evaluate.benchmarks.test.num_samples=3"),
    *("evaluate.benchmarks.test.temperature=0.8", "evaluate.benchmarks.test.limit=10"),
)


class Counting(DirectRunner):
    """Lists the phases that run; stops in front of one."""

    def __init__(self, stop_at: str = "") -> None:
        self.kinds: list[str] = []
        self._stop_at = stop_at

    def start(self, phase: Phase, work: Callable[[], None], *, after: Any = ()) -> Any:
        if phase.kind == self._stop_at:
            raise KeyboardInterrupt
        self.kinds.append(phase.kind)
        return super().start(phase, work, after=after)


def evaluated(planned: Plan, runner: DirectRunner | None = None) -> pd.DataFrame:
    """Responses of the first agent, untrained, to the benchmark `test`."""
    with open_experiment(planned) as (x, benchmarks):
        last = start_evaluation(x, 0, "qwen", benchmarks["test"], runner or DirectRunner())
        finish_evaluation(x, 0, "qwen", benchmarks["test"], last)
    return read_responses(planned.root, step=0, benchmark="test", agent="qwen")


def test_responses_are_the_same_in_any_shards(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluated(small_plan("hacpo", *SAMPLED, runs_dir=tmp_path / "whole"))
    counting = Counting()
    monkeypatch.setattr("hacpo_core.evaluation.run.SHARD_PROBLEMS", 4)
    cut = small_plan("hacpo", *SAMPLED, runs_dir=tmp_path / "cut")
    pd.testing.assert_frame_equal(evaluated(cut, counting), whole)
    assert counting.kinds == ["answer.test.0-4", "answer.test.4-8", "answer.test.8-10", "evaluate.test"]
    assert whole["sample"].tolist() == [0, 1, 2] * 10
    assert whole["text"].nunique() > 10, "samples of a problem differ"
    assert set(whole["status"]) == {"correct", "wrong"}


def test_interrupted_evaluation_goes_on_after_its_last_shard(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hacpo_core.evaluation.run.SHARD_PROBLEMS", 4)
    expected = evaluated(small_plan("hacpo", *SAMPLED, runs_dir=tmp_path / "reference"))
    broken = small_plan("hacpo", *SAMPLED)
    with pytest.raises(KeyboardInterrupt):
        evaluated(broken, Counting(stop_at="answer.test.8-10"))
    assert read_evaluations(broken.root).empty
    asked: list[int] = []
    inner = Agent.sample

    def counted(self: Agent, specs: Any, **options: Any) -> Any:
        asked.append(len({spec.problem.id for spec in specs}))
        return inner(self, specs, **options)

    monkeypatch.setattr(Agent, "sample", counted)
    pd.testing.assert_frame_equal(evaluated(broken), expected)
    assert asked == [2], "committed shards are not answered again, and never all problems at once"
    evaluated(broken)
    assert asked == [2], "a complete evaluation is not repeated"


def test_engine_of_its_own_is_asked_once_for_all_benchmarks_and_shards_of_an_evaluation(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call waits for its longest response. Benchmarks with the same ids (here dev and test) are apart."""
    monkeypatch.setattr("hacpo_core.evaluation.run.SHARD_PROBLEMS", 4)
    words = (*SAMPLED, "evaluate.final=[test, dev, part]", "evaluate.benchmarks.dev.limit=6")
    words += ("evaluate.benchmarks.part={kind: arithmetic, limit: 3, template: '{problem}'}",)
    words += ("evaluate.benchmarks.part.max_response_tokens=9",)
    calls: list[list[tuple[str, int, bool]]] = []
    inner = Agent.sample

    def counted(self: Agent, specs: Any, **options: Any) -> Any:
        calls.append([(spec.problem.id, spec.limits.max_tokens, spec.limits.is_greedy) for spec in specs])
        return inner(self, specs, **options)

    def all_responses(folder: str) -> list[pd.DataFrame]:
        calls.clear()
        planned = small_plan("hacpo", *words, runs_dir=tmp_path / folder)
        with open_experiment(planned) as (experiment, benchmarks):
            evaluate_agents(experiment, 0, list(benchmarks), benchmarks, DirectRunner(), lambda result: None)
        return [read_responses(planned.root, step=0, benchmark=name, agent="qwen") for name in benchmarks]

    monkeypatch.setattr(Agent, "sample", counted)
    expected = all_responses("by_shard")
    assert [len(call) for call in calls] == [12, 12, 6, 4, 2, 3] * 2, "two agents"
    monkeypatch.setattr(TransformersKind, "shares_weights", False)
    for frame, other in zip(all_responses("at_once"), expected, strict=True):
        pd.testing.assert_frame_equal(frame, other)
    assert [len(call) for call in calls] == [33, 6] * 2
    assert {is_greedy for _, _, is_greedy in calls[0]} == {True, False}


def test_damaged_shard_alone_is_answered_again(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hacpo_core.evaluation.run.SHARD_PROBLEMS", 4)
    planned = small_plan("hacpo", *SAMPLED)
    expected = evaluated(planned)
    folder = planned.root / "steps" / "000000"
    (folder / "answer.test.4-8.qwen.parquet").write_bytes(b"torn")
    with pytest.raises(StoreError, match="answer.test.4-8.qwen.parquet is missing or was altered"):
        read_responses(planned.root, step=0, benchmark="test", agent="qwen")
    (folder / "evaluate.test.qwen.json").unlink()
    pd.testing.assert_frame_equal(evaluated(planned), expected)


def test_figures_are_those_of_the_responses(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *SAMPLED)
    responses = evaluated(planned)
    frame = read_evaluations(planned.root).set_index("metric")
    assert list(frame.index) == ["avg@3", "best@3", "bootstrap_best@3", "pass@2"]
    reward_PK = responses["reward"].to_numpy().reshape(10, 3)
    assert frame.value["avg@3"] == pytest.approx(reward_PK.mean())
    assert frame.value["best@3"] == pytest.approx((reward_PK.max(axis=1) > 0).mean())
    assert (frame.low <= frame.value).all()
    assert (frame.value <= frame.high).all()
    assert (frame.num_samples == 3).all()
    assert (frame.num_problems == 10).all()
    assert (frame.cut_share == (responses["finish_reason"] == "length").mean()).all()
    assert 0 < frame.value["avg@3"] < 1


def test_unscored_responses_of_all_shards_count_together(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, answered = VerifierPool.verify, []

    def verify(self: VerifierPool, texts: Any, golds: Any, **options: Any) -> list[Verdict]:
        """Everything of the second shard and one of the third are unscored."""
        answered.append(len(texts))
        unscored = {2: 1, 3: 1}.get(len(answered), 0)
        return [*[Verdict("unscored", None, None, 5.0, "timeout")] * unscored, *inner(self, texts, golds, **options)][
            : len(texts)
        ]

    words = ("evaluate.during=[]", "evaluate.final=[test]")
    monkeypatch.setattr("hacpo_core.evaluation.run.SHARD_PROBLEMS", 1)
    monkeypatch.setattr(VerifierPool, "verify", verify)
    planned = small_plan("hacpo", *words, "verifier.max_unscored_fraction=0.1")  # 1 of 8
    with pytest.raises(VerificationError, match=r"step 0, qwen on test: 2 of 8 responses are unscored"):
        evaluated(planned)
    assert answered == [1, 1, 1], "a shard of one response may be without a verdict; the third one is too many"
    assert evaluated(planned)["status"].eq("unscored").sum() == 1, "the third shard was answered again"


def test_committed_evaluation_is_never_replaced_by_one_of_another_question(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *SAMPLED)
    responses = evaluated(planned)
    changed = with_benchmarks(planned, ["test"])
    declared = changed.config.evaluate.benchmarks
    declared["test"] = replace(declared["test"], num_samples=2)
    with pytest.raises(ConfigError, match=r"benchmark test: after step 0 it was evaluated with other problems or"):
        evaluated(changed)
    pd.testing.assert_frame_equal(read_responses(planned.root, step=0, benchmark="test", agent="qwen"), responses)


def test_other_declaration_under_a_name_of_the_experiment_is_refused(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    planned = small_plan("hacpo", *SAMPLED)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "test.yaml").write_text("{kind: arithmetic, limit: 5}", encoding="utf-8")
    (tmp_path / "one" / "mine.yaml").write_text("{kind: arithmetic, limit: 5}", encoding="utf-8")
    (tmp_path / "two" / "mine.yaml").write_text("{kind: arithmetic, limit: 6}", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{planned.id} declares it differently than .*; give the file another"):
        with_benchmarks(planned, [str(tmp_path / "test.yaml")])
    with pytest.raises(ConfigError, match="did you mean test"):
        with_benchmarks(planned, ["tst"])
    with pytest.raises(ConfigError, match=r"another of these files declares it differently than .*two/mine.yaml"):
        with_benchmarks(planned, [str(tmp_path / folder / "mine.yaml") for folder in ("one", "two")])


def test_agents_with_dots_in_their_names_are_told_apart(small_models: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load((small_models / "small.yaml").read_text(encoding="utf-8"))
    tree["pair"]["agents"] = {"test.qwen": tree["pair"]["agents"]["qwen"], "qwen": tree["pair"]["agents"]["qwen"]}
    (tmp_path / "dots.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    words = [f"runtime.runs_dir={small_models}", "tracking.enabled=false", "train.num_steps=1"]
    planned = plan(compose(str(tmp_path / "dots.yaml"), "gspo", overrides=words))
    save_plan(planned)
    result = run_experiment(planned, DirectRunner())
    frame = read_evaluations(planned.root)
    assert set(frame.agent) == {"test.qwen", "qwen"}
    assert set(frame.benchmark) == {"dev", "test"}
    assert len(frame) == 2 * 2 * 2
    for row in result.table:
        own = frame[(frame.agent == row["agent"]) & (frame.benchmark == "test")].set_index("step")
        assert (row["test_before"], row["test_after"]) == (own.value[0], own.value[1])


def test_experiment_is_evaluated_before_on_the_way_and_after(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "evaluate.during=[dev]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    frame = read_evaluations(planned.root)
    steps = {name: sorted(set(part.step)) for name, part in frame.groupby("benchmark")}
    assert steps == {"dev": [0, 2, 4], "test": [0, 4]}


def test_trained_agents_are_evaluated_after_any_step_on_any_benchmark(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    planned = small_plan("gspo", "evaluate.during=[dev]", "evaluate.final=[dev]", "checkpoint.keep=1")
    run_experiment(planned, DirectRunner())
    during = read_responses(planned.root, step=2, benchmark="dev", agent="llama")
    folder = planned.root / "steps" / "000002"
    for path in folder.glob("*.dev.*"):
        path.unlink()
    again = run_evaluation(with_benchmarks(planned, ["dev"]), 2, DirectRunner())
    pd.testing.assert_frame_equal(read_responses(planned.root, step=2, benchmark="dev", agent="llama"), during)
    assert set(again.step) == {2}
    (tmp_path / "mine.yaml").write_text("{kind: arithmetic, limit: 5, max_response_tokens: 40}", encoding="utf-8")
    new = run_evaluation(with_benchmarks(planned, [str(tmp_path / "mine.yaml")]), None, DirectRunner())
    assert set(zip(new.step, new.benchmark, new.num_problems, strict=True)) == {(4, "mine", 5)}
    samples = benchmark_samples(planned, "mine", 4)
    assert samples.groupby("agent").size().to_dict() == {"qwen": 5, "llama": 5}


def test_what_was_never_evaluated_is_one_clear_error(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", *SAMPLED, "train.num_steps=1")
    evaluated(planned)
    with pytest.raises(StoreError, match=r"no evaluation of llama on test after step 0; it has none"):
        read_responses(planned.root, step=0, benchmark="test", agent="llama")
    with pytest.raises(StoreError, match=r"no evaluation of qwen on dev after step 3; it has step 0 test"):
        benchmark_samples(planned, "dev", 3)
    with pytest.raises(ConfigError, match=r"--step: got 1, but .* is trained up to step 0; choose 0 to 0"):
        run_evaluation(with_benchmarks(planned, []), 1, DirectRunner())
    with pytest.raises(ConfigError, match=r"evaluate: got 'maths', expected one of test, aime2025"):
        with_benchmarks(planned, ["maths"])


def test_choices_that_an_evaluation_does_not_make_are_no_part_of_what_it_asks(small_plan: Callable[..., Plan]) -> None:
    digests = []
    for words in ((), ("rollout.top_p=0.5",)):
        with open_experiment(small_plan("hacpo", *SAMPLED, *words)) as (x, benchmarks):
            config, benchmark = x.config, benchmarks["test"]
        digests.append(question_digest(config, benchmark))
    assert digests[0] == digests[1]
    behind = replace(config, verifier=replace(config.verifier, answer_after_reasoning="marked"))
    assert question_digest(behind, benchmark) != question_digest(config, benchmark)
