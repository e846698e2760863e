"""Weights that cross to engines in other processes: one copy a machine, in shared memory where it fits."""

from __future__ import annotations

import errno
import os
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.vllm import exchange
from hacpo_core.engines.vllm.exchange import WeightExchange
from hacpo_core.errors import EngineError
from tests.engines.ranks import on_ranks

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
PARTS = [TensorPart(name, weight.dtype, tuple(weight.shape), weight.detach) for name, weight in WEIGHTS.items()]


@pytest.mark.parametrize(("free", "is_shared"), [(35, True), (32, False)])
def test_weights_lie_in_shared_memory_where_it_has_room_and_are_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, is_shared: bool
) -> None:
    shared, elsewhere = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(exchange, "SHARED_MEMORY", shared)
    monkeypatch.setattr(exchange.tempfile, "gettempdir", lambda: str(elsewhere))
    room = {shared: free, elsewhere: 10**9}
    monkeypatch.setattr(exchange.shutil, "disk_usage", lambda path: SimpleNamespace(free=room[Path(path).parent]))
    found = WeightExchange()
    with found.copy(PARTS) as folder:  # 24 + 6 bytes
        assert folder.parent == (shared if is_shared else elsewhere)
        read = load_file(folder / "model.safetensors")
        assert all(torch.equal(read[name], weight) for name, weight in WEIGHTS.items())
    assert not list(folder.iterdir())
    found.close()
    assert not [*shared.iterdir(), *elsewhere.iterdir()]


def test_weights_that_are_computed_are_in_memory_one_at_a_time() -> None:
    read: list[weakref.ref[torch.Tensor]] = []

    def merged(value: float) -> torch.Tensor:
        assert all(earlier() is None for earlier in read)
        weight = torch.full((2, 3), value)
        read.append(weakref.ref(weight))
        return weight

    found = WeightExchange()
    parts = (TensorPart(str(n), torch.float32, (2, 3), partial(merged, float(n))) for n in range(4))
    with found.copy(parts) as folder:
        assert [load_file(folder / "model.safetensors")[str(n)][0, 0] for n in range(4)] == [0, 1, 2, 3]
    found.close()
    assert len(read) == 4


def _exchange_on_a_rank() -> tuple[Path, bool, list[Path]]:
    found = WeightExchange()
    with found.copy(PARTS) as folder:
        own = [path for parent in found.folders for path in parent.iterdir()]
        is_read = torch.equal(load_file(folder / "model.safetensors")["a"], WEIGHTS["a"])
        dist.barrier()
    found.close()
    return folder, is_read, own


@pytest.mark.system
def test_ranks_of_one_machine_read_one_copy() -> None:
    (folder, is_read, first), (other, other_reads, second) = on_ranks(2, _exchange_on_a_rank)
    assert is_read
    assert other_reads
    assert folder == other
    assert [*first, *second] == [folder / "model.safetensors"]


def _full_on_a_rank() -> str:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    exchange.write_tensors = full  # type: ignore[assignment]
    found = WeightExchange()
    with pytest.raises(EngineError) as caught, found.copy(PARTS):
        pass
    found.close()
    return str(caught.value)


@pytest.mark.system
def test_full_disk_of_the_writer_is_one_error_on_every_rank() -> None:
    for message in on_ranks(2, _full_on_a_rank):
        assert "No space left on device; free some space there, or set TMPDIR" in message
