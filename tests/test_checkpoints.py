"""Checkpoints: whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hacpo_core.checkpoints import save_agent, save_checkpoint
from hacpo_core.errors import StoreError


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("disk is full"), StoreError)]
)
def test_checkpoint_that_is_broken_off_leaves_nothing(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    def save(name: str, folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(raised):
        save_checkpoint(tmp_path, 2, ["qwen"], save, {}, keep=1)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_all_that_ranks_do_together_is_done_before_the_first_of_them_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def noted(name: str, value: Any = None) -> Callable[..., Any]:
        return lambda *_, **__: events.append(name) or value

    learner = SimpleNamespace(
        refresh_policy=noted("gather"),
        optimizer_tensors=noted("gather", {}),
        digest=noted("gather", "d"),
        num_updates=3,
        policy=None,
    )
    tokens = SimpleNamespace(tokenizer=SimpleNamespace(save_pretrained=noted("write")))
    agent: Any = SimpleNamespace(learner=learner, tokens=tokens, version=2)
    monkeypatch.setattr("hacpo_core.checkpoints.save_model", noted("write"))
    monkeypatch.setattr("hacpo_core.checkpoints.save_file", noted("write"))
    assert save_agent(agent, tmp_path) == {"version": 2, "num_updates": 3, "digest": "d"}
    assert events == ["gather"] * 3 + ["write"] * 3
