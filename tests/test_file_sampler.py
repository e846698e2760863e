"""A sampler outside the package trains two agents, and is killed and resumed as any other."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.file_sampler import Answers
from flows.planning.plans import Plan
from flows.runs.experiment import run_experiment
from flows.runs.samples import step_samples
from hacpo_core.columns import Ragged
from hacpo_core.data.arithmetic import split_expressions
from hacpo_core.engines.sampling.base import Sampled
from hacpo_core.errors import ConfigError, EngineError
from hacpo_core.phases.runner import DirectRunner
from hacpo_core.store.steps import StepStore
from tests.experiments_outcome import outcome
from tests.test_resume import run_process

SHORT = ("evaluate.during=[]", "evaluate.final=[]")
TEXTS = ["\\boxed{3}", "\\boxed{4}", "3+4"]
"""of which the first is right"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Fields that choose the sampler, with a file for the small pair's problems."""
    file = tmp_path / "answers.json"
    file.write_text(json.dumps({str(problem): TEXTS for problem in split_expressions("dev")[:64]}), encoding="utf-8")
    return ["engine.sampler=examples.file_sampler:FileSampler", f"engine.sampler_options.file={file}"]


def test_agents_train_on_responses_of_a_file(words: list[str], small_plan: Callable[..., Plan]) -> None:
    planned = small_plan("hacpo", *words, "train.num_steps=2", "evaluate.final=[dev]")
    run_experiment(planned, DirectRunner())
    store = StepStore(planned.root)
    samples = step_samples(planned, 1)
    assert set(samples["text"]) == set(TEXTS)
    rewards = samples.groupby("text")["raw_reward"].unique()
    assert {text: list(reward) for text, reward in rewards.items()} == {TEXTS[0]: [1], TEXTS[1]: [0], TEXTS[2]: [0]}
    difference = store.metrics(2)["agents"]["qwen"]["sampler/logprob_difference_mean"]
    assert 0.0 <= difference < 1e-4, "its log-probabilities are the learner's, after an update too"
    digests = {outcome(planned)[f"{step} update.{agent}"] for step in (1, 2) for agent in ("qwen", "llama")}
    assert len(digests) == 4, "every update changed the weights"
    accuracy = store.read_value(0, "evaluate.dev.qwen", "evaluate.dev.qwen.json")["estimates"][0]
    assert accuracy["value"] == 1.0, "an evaluation takes the first response"


@pytest.mark.system
def test_sampler_outside_the_package_is_killed_and_resumed_to_the_bit(
    words: list[str], small_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    reference = small_plan("hacpo", *words, *SHORT, runs_dir=tmp_path / "reference")
    exit_code, counts = run_process(reference)
    assert exit_code == 0
    place = "after optimizer step", counts["after optimizer step"] * 3 // 4
    killed = small_plan("hacpo", *words, *SHORT, runs_dir=tmp_path / "killed")
    assert run_process(killed, place)[0] == -signal.SIGKILL
    assert run_process(killed)[0] == 0
    assert outcome(killed) == outcome(reference)


def test_file_that_is_missing_is_refused_before_the_run(words: list[str], small_plan: Callable[..., Plan]) -> None:
    with pytest.raises(ConfigError, match="engine.sampler_options.file: nothing.json does not exist; name a JSON file"):
        small_plan("hacpo", words[0], "engine.sampler_options.file=nothing.json")


def test_responses_that_do_not_fit_the_requests_are_one_error(
    words: list[str], small_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Answers.sample
    changes: dict[str, Callable[[Sampled], Sampled]] = {
        "file returned 0 responses to 16 requests, expected one each": lambda _: Sampled.of([]),
        r"file returned \d+ tokens with 16 log-probabilities, expected one per token": lambda s: replace(
            s, logprobs=Ragged.of([[0.0]] * 16, np.float32)
        ),
        "file returned responses of 41 to 41 tokens, expected 1 to 40; correct its method sample": lambda _: Sampled.of(
            [([5] * 41, [0.0] * 41, True)] * 16
        ),
    }
    for message, change in changes.items():
        monkeypatch.setattr(Answers, "sample", lambda *given, change=change: change(sample(*given)))
        with pytest.raises(EngineError, match=message):
            run_experiment(small_plan("gspo", *words, *SHORT), DirectRunner())
