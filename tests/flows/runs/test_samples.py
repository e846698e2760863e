"""What `hacpo samples` shows of a step, and how tables are written."""

from pathlib import Path

import numpy as np
import pytest

from flows.planning.compose import compose
from flows.planning.plans import Plan
from flows.runs.display import format_table
from flows.runs.samples import print_samples, step_samples
from hacpo_core.data.training import load_training
from tests.dashboards.stores import write_answers

AGENTS = ("qwen-tiny", "llama-tiny")


@pytest.mark.parametrize(("method", "is_shared"), [("gspo", False), ("hacpo", True)])
def test_learner_that_takes_no_row_of_others_has_no_weight_for_them(
    method: str, is_shared: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "x"
    write_answers(root, 1, {"p": {agent: [("it is 3", "correct")] for agent in AGENTS}})
    samples = step_samples(Plan("x", compose("tiny", method), root), 1)
    print_samples(samples, 1)
    printed = capsys.readouterr().out
    for learner, source in (AGENTS, AGENTS[::-1]):
        own, other = (samples[samples.agent == agent][f"advantage_for_{learner}"] for agent in (learner, source))
        assert own.tolist() == [1.0]
        assert bool(np.isnan(other).all()) is not is_shared
        line = next(line for line in printed.splitlines() if line.startswith(f"--- {source} "))
        assert (f"{learner}: A" in line) is is_shared
    assert "nan" not in printed
    assert samples["answer"].isna().all()  # of a problem that the training set does not have


def test_samples_show_the_problem_its_gold_answer_and_the_answer_that_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose("tiny", "gspo")
    problem = load_training(config.data).problems[0]
    write_answers(tmp_path, 1, {problem.id: {agent: [("it is 3", "wrong")] for agent in AGENTS}})
    print_samples(step_samples(Plan("x", config, tmp_path), 1), 1)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("[learner: A advantage, s importance ratio")
    assert printed[1:4] == [f"=== {problem.id}", problem.messages[-1].content, f"gold answer: {problem.answer}"]
    assert printed[4].startswith("--- qwen-tiny #0 wrong, answer ")


def test_numbers_of_a_column_have_one_format() -> None:
    rows = [
        {"agent": "a", "dev_after": 0.5, "seconds": 0.84, "tokens": 950},
        {"agent": "b", "dev_after": 1.0, "seconds": 1234.56, "tokens": 1200},
    ]
    lines = [line.split() for line in format_table(rows).splitlines()]
    assert lines[1:] == [["a", "0.500", "0.8", "950"], ["b", "1.000", "1,234.6", "1,200"]]
    assert format_table([{"points": 0.25}, {"points": -12.0}]).split() == ["points", "0.2", "-12.0"]
