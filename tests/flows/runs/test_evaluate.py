"""The evaluation flow as a person and Prefect see it."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from flows.planning.plans import Plan, load_benchmarks
from flows.runs.evaluate import check_questions
from flows.runs.experiment import run_experiment
from hacpo_core.errors import ConfigError
from hacpo_core.evaluation.table import read_evaluations
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
    assert done.stderr.startswith("hacpo: evaluate: got 'dev', expected one of")
    done = hacpo("evaluate", planned.id, "--step", "0", "--runs-dir", runs_dir)
    assert done.returncode == 0, done.stderr[-2000:]
    table = read_evaluations(planned.root)
    assert all(f"{value:.3f}" in done.stdout for value in table[table.step == 0].value)
    shown = hacpo("samples", planned.id, "--num", "1", "--runs-dir", runs_dir)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert shown.stdout.startswith("[learner: A advantage")
    assert "--- qwen #0 " in shown.stdout
    assert "--- llama #0 " in shown.stdout


def test_changed_question_under_one_name_is_refused_whatever_the_step(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    evaluate = planned.config.evaluate
    check_questions(planned, load_benchmarks(planned.config))
    fewer = {"test": replace(evaluate.benchmarks["test"], limit=4)}
    changed = replace(planned.config, evaluate=replace(evaluate, benchmarks=fewer))
    with pytest.raises(ConfigError, match="benchmark test: after step 0"):
        check_questions(replace(planned, config=changed), load_benchmarks(changed))
