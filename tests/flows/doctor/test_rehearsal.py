"""The rehearsal of a GPU's memory, on the CPU with a very small model."""

import re
from pathlib import Path

import pytest

from flows.doctor import rehearsal
from hacpo_core.engines.learning.torch_learner import TorchLearner
from tests.engines.small import TOKENIZER, small_model

WORDS = ("rollout.max_prompt_tokens=100", "rollout.max_response_tokens=60", "engine.micro_batch_tokens=200")


@pytest.mark.slow
def test_rehearsal_updates_two_agents_with_the_longest_rows_and_prints_peak_and_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_model().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    lengths, step = [], TorchLearner.update

    def spied(learner: TorchLearner, minibatches: list, *arguments: object, **options: object) -> object:  # type: ignore[type-arg]
        lengths.append(minibatches[0].tokens.lengths_B.tolist())
        return step(learner, minibatches, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchLearner, "update", spied)
    line = rehearsal.rehearse(str(tmp_path / "model"), "cpu", *WORDS)
    assert lengths == [[160] * 32] * 2, "two agents, 16 x ceil(200 / 160) rows"
    found = re.fullmatch(r"two agents of .*model: peak (.*) GiB, by the plan at most (.*), of (.*)", line)
    assert found is not None, line
    peak, _, room = map(float, found.groups())
    assert 0 < peak <= room
