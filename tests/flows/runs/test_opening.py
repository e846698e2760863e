"""Opening an experiment: its number of threads is that of its start, and its benchmarks' prompts fit its models."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from flows.planning.plans import Plan
from flows.runs import experiment as experiment_module
from flows.runs.experiment import run_experiment
from flows.runs.opening import THREADS_FILE, open_experiment, with_threads
from hacpo_core.config import threads
from hacpo_core.config.threads import SLOTS
from hacpo_core.engines.models.loading import LengthLimits, length_limits
from hacpo_core.errors import DataError
from hacpo_core.evaluation.run import sampling_limits
from hacpo_core.files import read_json
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import REPLAYS_FILE
from tests.experiments_outcome import finish, outcome

AUTO = ("engine.num_threads=auto", "evaluate.final=[]", "evaluate.during=[]")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threads, "CPU_LIMIT", Path("/nowhere"))
    monkeypatch.delenv(SLOTS, raising=False)


def test_number_of_the_start_stays_and_is_no_larger_than_the_machine(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = small_plan("gspo", *AUTO)
    assert plan.config.engine.num_threads == "auto"
    assert with_threads(plan.config, plan.root).engine.num_threads == 2
    monkeypatch.setenv(SLOTS, "2")
    assert with_threads(plan.config, plan.root).engine.num_threads == 2
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0})
    assert with_threads(plan.config, plan.root).engine.num_threads == 1
    assert read_json(plan.root / THREADS_FILE) == {"num_threads": 2}
    (plan.root / THREADS_FILE).write_text("{")
    with caplog.at_level(logging.WARNING):
        assert with_threads(plan.config, plan.root).engine.num_threads == 1
    assert "threads.json is damaged" in caplog.text
    assert read_json(plan.root / THREADS_FILE) == {"num_threads": 1}


@pytest.mark.slow
def test_prompts_of_a_benchmark_that_do_not_fit_are_counted_before_anything_is_sampled(
    small_plan: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 128 positions; a character is a token of the first agent
    rows = [{"id": f"p{n}", "problem": "1" * n, "answer": "3"} for n in (3, 70, 150, 160)]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "long.yaml").write_text(f"{{file: {tmp_path}/long.jsonl, template: '{{problem}}'}}", encoding="utf-8")
    words = (f"evaluate.during=[{tmp_path}/long.yaml]", "evaluate.final=[]")
    message = (
        r"long, agent qwen: 2 of 4 prompts have more than 127 tokens.*'p160', has 1\d\d.*a model with more positions"
    )
    with pytest.raises(DataError, match=message):
        finish(small_plan("gspo", *words))
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows[:2])), encoding="utf-8")
    caplog.clear()
    with open_experiment(small_plan("gspo", *words)) as (experiment, benchmarks):
        (benchmark,) = benchmarks.values()
        num_tokens = experiment.config.rollout.max_response_tokens
        assert sampling_limits(experiment.config, benchmark.config).max_tokens == num_tokens, "those of the training"
        assert "positions" not in caplog.text
    for limit, text in (
        (100, "1 of 2 prompts have more than 28 tokens"),
        (200, "no prompt leaves room for a response"),
    ):
        with open_experiment(small_plan("gspo", *words, f"evaluate.benchmarks.long.max_response_tokens={limit}")):
            assert f"long, agent qwen: {text}" in caplog.text
            assert "128 positions; lower evaluate.benchmarks.long.max_response_tokens" in caplog.text


@pytest.mark.parametrize(
    ("rotation", "hard"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "dynamic", "factor": 2.0}, 64),
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}, 32),
    ],
)
def test_limit_of_a_model_is_where_its_positions_end_or_change(
    rotation: dict[str, Any], hard: int | None, tmp_path: Path
) -> None:
    LlamaConfig(max_position_embeddings=64, rope_parameters=rotation | {"rope_theta": 1e4}).save_pretrained(tmp_path)
    assert length_limits(tmp_path) == LengthLimits(64, hard)
    GPT2Config(n_positions=16).save_pretrained(tmp_path)
    assert length_limits(tmp_path) == LengthLimits(16, 16), "learned positions"


def stopped_before_the_last_step(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = experiment_module.train_step

    def step(experiment: object, number: int, runner: object) -> None:
        if number == 4:  # the checkpoint is that of step 2, so a resumed run repeats step 3
            raise KeyboardInterrupt
        inner(experiment, number, runner)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(experiment_module, "train_step", step)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(plan, DirectRunner())


@pytest.mark.system
def test_resume_in_a_grid_with_more_slots_has_the_same_bits(
    small_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = finish(small_plan("gspo", *AUTO, runs_dir=tmp_path / "undisturbed"))
    assert torch.get_num_threads() == 2
    plan = small_plan("gspo", *AUTO)
    stopped_before_the_last_step(plan, monkeypatch)
    monkeypatch.setenv(SLOTS, "2")
    assert finish(plan) == expected
    assert torch.get_num_threads() == 2
    assert {replay["kind"] for replay in read_json(plan.root / REPLAYS_FILE)} == {"exact"}


@pytest.mark.slow
def test_resume_with_fewer_cores_is_near_and_no_error(
    small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan("gspo", *AUTO)
    stopped_before_the_last_step(plan, monkeypatch)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0})
    found = finish(plan)
    assert torch.get_num_threads() == 1
    assert found == outcome(plan)
    assert {replay["kind"] for replay in read_json(plan.root / REPLAYS_FILE)} <= {"near", "exact"}
