"""The evaluation flow as a person and Prefect see it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.planning.plans import Plan
from flows.runs.evaluate import check_questions, with_benchmarks
from flows.runs.experiment import run_experiment
from flows.service.server import ensure_server, stop_server
from hacpo_core.errors import ConfigError
from hacpo_core.evaluation.table import read_evaluations
from hacpo_core.phases.runner import DirectRunner
from tests.flows.runs.test_runner import ask, tasks_of


def hacpo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *words], capture_output=True, text=True, timeout=400, env=os.environ
    )


@pytest.mark.slow
def test_command_line_evaluates_and_shows_the_responses(small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]")
    run_experiment(planned, DirectRunner())
    runs_dir = str(planned.root.parents[1])
    done = hacpo("evaluate", planned.id, "--benchmarks", "dev", "--runs-dir", runs_dir)
    assert done.returncode == 2
    assert done.stderr.startswith("hacpo: benchmark: got 'dev', expected one of")
    done = hacpo("evaluate", planned.id, "--step", "0", "--runs-dir", runs_dir, "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if "value" in line]
    expected = read_evaluations(planned.root)
    expected = expected[expected.step == 0]
    assert [(row["agent"], row["value"]) for row in rows] == list(zip(expected.agent, expected.value, strict=True))
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


@pytest.mark.slow
def test_flow_runs_each_shard_as_a_gpu_task_and_leaves_a_table(
    small_plan: Callable[..., Plan], tmp_path: Path, migrated: Callable[[Path], None]
) -> None:
    runs_dir = tmp_path / "served"
    planned = small_plan("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]", runs_dir=runs_dir)
    run_experiment(planned, DirectRunner())
    served = small_plan(
        *("gspo", "train.num_steps=1", "evaluate.during=[]", "evaluate.final=[test]"),
        *("runtime.runner=prefect", "evaluate.shard_problems=3"),
        runs_dir=runs_dir,
    )
    assert served.root == planned.root
    for path in (planned.root / "steps" / "000001").glob("*.test.*"):
        path.unlink()
    migrated(runs_dir)
    record = ensure_server(runs_dir)
    try:
        done = hacpo("evaluate", planned.id, "--runs-dir", str(runs_dir))
        assert done.returncode == 0, done.stderr[-2000:]
        shards = [f"step 1 · answer.test.{shard} · qwen" for shard in ("0-3", "3-6", "6-8")]
        tasks = tasks_of(record, f"{planned.id} · evaluate", *shards, "step 1 · evaluate.test · qwen")
        assert {name for name in tasks if "qwen" in name} == {*shards, "step 1 · evaluate.test · qwen"}
        assert tasks[shards[0]]["tags"] == ["gpu"]
        assert tasks["step 1 · evaluate.test · qwen"]["tags"] == []
        assert "table" in {artifact["type"] for artifact in ask(record, "artifacts", limit=50)}
    finally:
        stop_server(runs_dir)
