"""The evaluation flow as a person and Prefect see it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.planning.plans import Plan
from flows.runs.evaluate import check_questions, run_evaluation, with_benchmarks
from flows.runs.experiment import evaluate_agents, run_experiment
from hacpo_core.errors import ConfigError, DataError, VerificationError
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.experiment import Experiment
from hacpo_core.phases.runner import DirectRunner

pytestmark = pytest.mark.slow


def hacpo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *words], capture_output=True, text=True, timeout=400, env=os.environ
    )


@pytest.mark.system
def test_command_line_evaluates_and_shows_the_responses(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    runs_dir = str(planned.root.parents[1])
    done = hacpo("evaluate", planned.id, "--benchmarks", "dev", "--runs-dir", runs_dir)
    assert done.returncode == 2
    assert done.stderr.startswith("hacpo: dev: benchmark: got 'dev', expected one of")
    done = hacpo("evaluate", planned.id, "--step", "0", "--runs-dir", runs_dir)
    assert done.returncode == 0, done.stderr[-2000:]
    table = read_evaluations(planned.root)
    assert all(f"{value:.3f}" in done.stdout for value in table[table.step == 0].value)
    shown = hacpo("samples", planned.id, "--benchmark", "test", "--num", "1", "--runs-dir", runs_dir)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert shown.stdout.startswith("=== ")
    assert "--- qwen #0 " in shown.stdout
    assert "--- llama #0 " in shown.stdout


def test_changed_question_under_one_name_is_found_before_a_flow_run_is_made(
    small_plan: Callable[..., Plan],
) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    asked = with_benchmarks(planned, ["test"])
    check_questions(asked)
    evaluate = asked.config.evaluate
    fewer = {"test": dataclasses.replace(evaluate.benchmarks["test"], limit=4)}
    changed = dataclasses.replace(
        asked, config=dataclasses.replace(asked.config, evaluate=dataclasses.replace(evaluate, benchmarks=fewer))
    )
    with pytest.raises(ConfigError, match="test"):
        check_questions(changed)


@pytest.mark.system
def test_command_evaluates_what_it_can_and_says_what_failed(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    words = ("--benchmarks", "nowhere,test,arithmetic_dev", "--runs-dir", str(planned.root.parents[1]))
    done = hacpo("evaluate", planned.id, *words, "--step", "0")
    assert done.returncode == 2, done.stderr[-2000:]
    assert "hacpo: nowhere: benchmark: got 'nowhere', expected one of" in done.stderr
    assert " test " in done.stdout and " arithmetic_dev " in done.stdout
    evaluated = read_evaluations(planned.root)
    assert set(evaluated[evaluated.step == 0].benchmark) == {"test", "arithmetic_dev"}


def test_benchmark_that_fails_while_it_runs_stops_no_other(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())

    def evaluated(experiment: Experiment, step: int, names: list[str], *rest: Any) -> None:
        if "arithmetic_dev" in names:
            raise VerificationError("step 0: 8 of 8 responses are unscored")
        evaluate_agents(experiment, step, names, *rest)

    monkeypatch.setattr("flows.runs.evaluate.evaluate_agents", evaluated)
    chosen = with_benchmarks(planned, ["arithmetic_dev", "test"])
    with pytest.raises(VerificationError, match="arithmetic_dev: step 0: 8 of 8 responses are unscored"):
        run_evaluation(chosen, 0, DirectRunner())
    found = read_evaluations(planned.root)
    assert set(found[found.step == 0].benchmark) == {"test"}


def test_benchmark_with_prompts_that_are_too_long_stops_no_other(
    small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "a", "problem": "1" * 4000, "answer": "1"}) + "\n")
    long = tmp_path / "long.yaml"
    long.write_text(f"{{file: {tmp_path / 'long.jsonl'}, template: '{{problem}}'}}", encoding="utf-8")
    chosen = with_benchmarks(planned, [str(long), "arithmetic_dev"])
    with pytest.raises(DataError, match="^long: benchmark long, agent qwen: 1 of 1 prompts are too long"):
        run_evaluation(chosen, 0, DirectRunner())
    found = read_evaluations(planned.root)
    assert set(found[found.step == 0].benchmark) == {"test", "arithmetic_dev"}
