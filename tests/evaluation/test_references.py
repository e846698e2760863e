"""Bits per byte of reference solutions: against transformers, over unlike tokenizers, resumed, and off by default."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from flows.planning.plans import Plan
from flows.records.progress import read_progress
from flows.runs.experiment import run_experiment
from flows.runs.opening import open_experiment
from flows.runs.results import result_values
from hacpo_core.data import rows
from hacpo_core.data.arithmetic import solve, split_expressions
from hacpo_core.engines.models.loading import LengthLimits
from hacpo_core.errors import ConfigError, DataError
from hacpo_core.evaluation import references
from hacpo_core.evaluation.results import EvaluationResult
from hacpo_core.evaluation.run import finish_evaluation, question_digest, start_evaluation
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.placement.agents import Agent
from hacpo_core.store.steps import StepStore
from tests.evaluation.test_run import Counting

pytestmark = pytest.mark.slow

NUM_PROBLEMS = 6


@pytest.fixture
def solved(tmp_path: Path) -> Path:
    """A file of sums with their worked solutions, white space around them."""
    rows = [
        {"id": f"p{n}", "problem": str(each), "answer": str(each.work()[2]), "solution": f"\n{solve(each)}\n "}
        for n, each in enumerate(split_expressions("dev")[:NUM_PROBLEMS])
    ]
    path = tmp_path / "solved.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def words(path: Path, *others: str) -> tuple[str, ...]:
    """Overrides that evaluate on the file and score its solutions."""
    test = "evaluate.benchmarks.test"
    return (
        *("evaluate.during=[]", "evaluate.final=[test]", f"{test}.file={path}", f"{test}.reference_field=solution"),
        *others,
    )


def evaluated(planned: Plan, runner: DirectRunner | None = None) -> Mapping[str, EvaluationResult]:
    """Results of both agents, untrained, on the benchmark `test`."""
    found = {}
    with open_experiment(planned) as (x, benchmarks):
        for agent in x.agents:
            last = start_evaluation(x, 0, agent, benchmarks["test"], runner or DirectRunner())
            found[agent] = finish_evaluation(x, 0, agent, benchmarks["test"], last)
    return found


def bits_of(planned: Plan, agent: str) -> pd.DataFrame:
    """Problem, bytes, tokens and bits of each solution."""
    phase = f"score.test.{agent}"
    return StepStore(planned.root).read_table(0, phase, f"{phase}.parquet")


@torch.no_grad()
def bits_by_transformers(planned: Plan, agent: str, problem: str, solution: str) -> float:
    """Minus the sum of log2 p over the solution's tokens, computed by transformers alone."""
    with open_experiment(planned) as (x, _):
        folder, tokenizer = x.placement.folder(agent), x.placement.tokenizers[agent].tokenizer
    message = {"role": "user", "content": problem}
    prompt = tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = tokenizer(solution, add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    logprob_TV = model(torch.tensor([[*prompt, *ids]])).logits[0].double().log_softmax(dim=1)
    nats = sum(float(logprob_TV[len(prompt) + t - 1, token]) for t, token in enumerate(ids))
    return -nats / math.log(2)


def test_bits_are_those_of_transformers_log_softmax_at_temperature_one(
    small_plan: Callable[..., Plan], solved: Path
) -> None:
    planned = small_plan("hacpo", *words(solved, "rollout.temperature=0.5"))
    found = evaluated(planned)
    texts = [(str(each), solve(each)) for each in split_expressions("dev")[:NUM_PROBLEMS]]
    for agent in ("qwen", "llama"):
        expected = [bits_by_transformers(planned, agent, *each) for each in texts]
        table = bits_of(planned, agent)
        assert table["bits"].tolist() == pytest.approx(expected, rel=1e-5)
        assert table["num_bytes"].tolist() == [len(text.encode()) for _, text in texts]
        measured = found[agent].bits_per_byte
        assert measured is not None
        assert measured.value == pytest.approx(sum(expected) / sum(len(text) for _, text in texts), rel=1e-5)
        assert measured.low < measured.value < measured.high
        assert measured.num_problems == NUM_PROBLEMS


def test_headline_stays_the_accuracy(small_plan: Callable[..., Plan], solved: Path) -> None:
    planned = small_plan("hacpo", *words(solved))
    result = evaluated(planned)["qwen"]
    assert [each.metric for each in result.estimates] == ["avg@1", "bits_per_byte"]
    assert (result.headline, result.value) == ("avg@1", result.estimates[0].value)
    assert result_values(result)["evaluate/test_bits_per_byte"] == result.estimates[1].value
    assert str(result).endswith(f", {result.estimates[1].value:.3f} bits per byte")
    scored = StepStore(planned.root).read_value(0, "score.test.qwen", "score.test.qwen.json")["cost"]
    shard = StepStore(planned.root).read_value(0, "answer.test.0-6.qwen", "answer.test.0-6.qwen.json")["cost"]
    assert result.cost.seconds == pytest.approx(scored["seconds"] + shard["seconds"])
    assert scored["seconds"] > 0


@pytest.mark.parametrize("stop_at", ["score.test", "evaluate.test"])
def test_interrupted_evaluation_goes_on_with_the_same_bits(
    small_plan: Callable[..., Plan],
    solved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: str,
) -> None:
    expected = evaluated(small_plan("hacpo", *words(solved), runs_dir=tmp_path / "reference"))
    broken = small_plan("hacpo", *words(solved))
    with pytest.raises(KeyboardInterrupt):
        evaluated(broken, Counting(stop_at=stop_at))
    assert read_evaluations(broken.root).empty
    calls: list[str] = []
    score, sample = Agent.score, Agent.sample

    def counted_score(self: Agent, *arguments: Any, **options: Any) -> Any:
        calls.append(f"score {self.name}")
        return score(self, *arguments, **options)

    def counted_sample(self: Agent, *arguments: Any, **options: Any) -> Any:
        calls.append(f"sample {self.name}")
        return sample(self, *arguments, **options)

    monkeypatch.setattr(Agent, "score", counted_score)
    monkeypatch.setattr(Agent, "sample", counted_sample)
    found = evaluated(broken)
    assert {agent: result.estimates for agent, result in found.items()} == {
        agent: result.estimates for agent, result in expected.items()
    }
    of_qwen = ["score qwen"] if stop_at == "score.test" else []
    assert calls == [*of_qwen, "sample llama", "score llama"], "what was committed is not repeated"


def test_empty_and_too_long_solutions_are_left_out_and_counted(
    small_plan: Callable[..., Plan], solved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows.warn_once.cache_clear()
    lines = [json.loads(line) for line in solved.read_text(encoding="utf-8").splitlines()]
    lines[0]["solution"], lines[1]["solution"], lines[2]["solution"] = " \n", None, "1+1=2\n" * 12
    solved.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    monkeypatch.setattr(references, "length_limits", lambda *_, **__: LengthLimits(60, None))
    planned = small_plan("hacpo", *words(solved))
    measured = evaluated(planned)["qwen"].bits_per_byte
    table = bits_of(planned, "qwen")
    assert table["bits"].isna().tolist() == [True, True, True, False, False, False]
    assert measured is not None
    assert measured.num_problems == 3
    assert measured.value == pytest.approx(table["bits"][3:].sum() / table["num_bytes"][3:].sum())
    assert (
        "benchmark test, agent qwen: 3 of 6 reference solutions are left out of bits_per_byte: 2 empty, "
        "1 longer than the model's 60 positions with the prompt"
    ) in caplog.messages


def test_missing_column_is_named_when_the_training_is_planned(small_plan: Callable[..., Plan], solved: Path) -> None:
    lines = solved.read_text(encoding="utf-8").splitlines()
    lines[3] = lines[3].replace('"solution"', '"worked"')
    solved.write_text("\n".join(lines), encoding="utf-8")
    message = (
        r"solved.jsonl, line 4: field 'solution' is missing; the row has id, problem, answer, worked; fix the row, or "
        r"set evaluate.benchmarks.test.reference_field to another column, or leave it out"
    )
    with pytest.raises(DataError, match=message):
        small_plan("hacpo", *words(solved))


def test_embedded_solutions_have_a_name_and_development_has_none(small_plan: Callable[..., Plan]) -> None:
    final, x = ("evaluate.during=[]", "evaluate.final=[x]"), "evaluate.benchmarks.x"
    kind = (f"{x}.kind=arithmetic", f"{x}.limit=2", f"{x}.reference_field=solution")
    with open_experiment(small_plan("hacpo", *final, *kind)) as (_, benchmarks):
        texts = references.reference_texts(benchmarks["x"])
    assert texts == [solve(each) for each in split_expressions("dev")[:2]]
    assert texts[0].splitlines()[-1] == f"\\boxed{{{split_expressions('dev')[0].work()[2]}}}"
    message = r"evaluate.benchmarks.x.reference_field: got 'answer' with kind word_problems, expected solution"
    with pytest.raises(ConfigError, match=message):
        small_plan("hacpo", *final, f"{x}.kind=word_problems", f"{x}.reference_field=answer")
    held_out = ("data.development_share=0.5", f"{x}.kind=development", f"{x}.reference_field=solution")
    with pytest.raises(ConfigError, match=r"got 'solution' with kind development, whose problems have no solutions"):
        small_plan("hacpo", *final, *held_out)


def test_what_is_off_is_in_no_id_and_no_result(small_plan: Callable[..., Plan], solved: Path) -> None:
    on, off = small_plan("hacpo", *words(solved)), small_plan("hacpo", *words(solved)[:-1])
    assert on.id != off.id
    with open_experiment(off) as (_, benchmarks):
        asked = benchmarks["test"]
    assert {problem.solution for problem in asked.problems} == {""}
    with open_experiment(on) as (_, benchmarks):
        scored = benchmarks["test"]
        other = replace(scored, problems=(replace(scored.problems[0], solution="2"), *scored.problems[1:]))
    assert (
        len({question_digest(off.config, asked), question_digest(on.config, scored), question_digest(on.config, other)})
        == 3
    )
    result = evaluated(off)["qwen"]
    assert result.bits_per_byte is None
    assert "bits" not in str(result)


def test_training_reports_bits_in_its_table_and_its_progress(small_plan: Callable[..., Plan], solved: Path) -> None:
    planned = small_plan("gspo", *words(solved, "train.num_steps=1"))
    run_experiment(planned, DirectRunner())
    frame = read_evaluations(planned.root)
    bits = frame[frame.metric == "bits_per_byte"].set_index(["step", "agent"])["value"]
    progress = read_progress(planned.root)
    assert progress is not None
    assert {(e.step, e.agent): e.bits_per_byte for e in progress.evaluations} == bits.to_dict()
    assert bits[1, "qwen"] != bits[0, "qwen"], "scored under the trained weights"
