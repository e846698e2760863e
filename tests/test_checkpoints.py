"""Checkpoints: whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hacpo_core.checkpoints import save_checkpoint
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
