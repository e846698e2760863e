"""Weights that cross to engines in other processes, through a bucket of two halves in shared memory."""

import multiprocessing
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hacpo_core.engines.models.tensor_files import TensorPart
from hacpo_core.engines.vllm import exchange
from hacpo_core.engines.vllm.exchange import Place, WeightBucket, mapped
from hacpo_core.errors import EngineError
from tests.engines.ranks import on_ranks

WEIGHTS = {
    "odd": torch.arange(3, dtype=torch.bfloat16),
    "large": torch.arange(128.0).reshape(4, 32),
    "scalar": torch.tensor(7.0),
    "wide": torch.linspace(-1, 1, 40).reshape(20, 2),
    "negative": -torch.arange(30.0),
}


def parts_of(weights: dict[str, torch.Tensor]) -> list[TensorPart]:
    return [TensorPart(name, weight.dtype, tuple(weight.shape), weight.detach) for name, weight in weights.items()]


def loaded(path: str, places: list[Place]) -> dict[str, torch.Tensor]:
    """What an engine reads of a half."""
    memory = mapped(path)
    return {place.name: place.view(memory).clone() for place in places}


def transferred(bucket: WeightBucket, parts: list[TensorPart]) -> list[dict[str, torch.Tensor]]:
    """What an engine loads from each half, one after another."""
    return [loaded(bucket.path, places) for places in bucket.fill(parts)]


def is_same(tensors: dict[str, torch.Tensor]) -> bool:
    same = (torch.equal(tensors[name], weight) for name, weight in WEIGHTS.items())
    dtypes = ((tensors[name].dtype, tensors[name].shape) == (w.dtype, w.shape) for name, w in WEIGHTS.items())
    return list(tensors) == list(WEIGHTS) and all(same) and all(dtypes)


def test_another_process_gets_the_same_bits_half_by_half() -> None:
    bucket = WeightBucket(parts_of(WEIGHTS))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        halves = [pool.apply(loaded, (bucket.path, places)) for places in bucket.fill(parts_of(WEIGHTS))]
    bucket.close()
    assert [list(half) for half in halves] == [["odd"], ["large"], ["scalar", "wide", "negative"]]
    assert is_same({name: tensor for half in halves for name, tensor in half.items()})


def test_halves_take_turns() -> None:
    bucket = WeightBucket(parts_of(WEIGHTS))
    filled = bucket.fill(parts_of(WEIGHTS))
    first, second = next(filled), next(filled)
    memory = mapped(bucket.path)
    kept, reused = second[0].view(memory), first[0].view(memory)
    assert torch.equal(reused, WEIGHTS["odd"]), "the engine may still load it"
    third = next(filled)
    assert torch.equal(kept, WEIGHTS["large"]), "the engine may still load it"
    assert not torch.equal(reused, WEIGHTS["odd"])
    assert [first[0].start, second[0].start] == [0, len(memory) // 2]
    assert [place.start for place in third] == [0, 64, 256], "aligned to 64 bytes"
    bucket.close()


@pytest.mark.parametrize(
    ("limit", "shapes", "half"),
    [
        (2**28, [(16,)] * 16, 512),  # half of the model
        (2**8, [(16,)] * 16, 256),  # the limit
        (100, [(16,)] * 16, 128),  # the limit, in whole 64 bytes
        (2**8, [(16,), (4, 64), (16,)], 1024),  # the largest tensor
    ],
)
def test_half_is_as_large_as_half_the_model_up_to_a_limit_and_as_the_largest_tensor(
    monkeypatch: pytest.MonkeyPatch, limit: int, shapes: list[tuple[int, ...]], half: int
) -> None:
    monkeypatch.setattr(exchange, "HALF_BYTES", limit)
    bucket = WeightBucket(parts_of({str(n): torch.ones(shape) for n, shape in enumerate(shapes)}))
    assert os.path.getsize(bucket.path) == 2 * half
    assert os.stat(bucket.path).st_blocks * 512 >= 2 * half, "allocated"
    bucket.close()


def test_weights_that_are_computed_are_in_memory_one_at_a_time() -> None:
    read: list[weakref.ref[torch.Tensor]] = []

    def merged(value: float) -> torch.Tensor:
        assert all(earlier() is None for earlier in read)
        weight = torch.full((2, 3), value)
        read.append(weakref.ref(weight))
        return weight

    parts = [TensorPart(str(n), torch.float32, (2, 3), partial(merged, float(n))) for n in range(4)]
    bucket = WeightBucket(parts)
    assert not read, "only sizes are needed"
    values = {name: float(tensor[0, 0]) for half in transferred(bucket, parts) for name, tensor in half.items()}
    bucket.close()
    assert values == {"0": 0, "1": 1, "2": 2, "3": 3}
    assert len(read) == 4


def test_weights_lie_elsewhere_where_shared_memory_has_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    shared = small_disk("256k")
    monkeypatch.setattr(exchange, "SHARED_MEMORY", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for num_floats, folder in ((2**10, shared), (2**17, tmp_path)):
        bucket = WeightBucket(parts_of({"a": torch.ones(num_floats)}))
        assert Path(os.readlink(bucket.path)).is_relative_to(folder)
        bucket.close()
    assert list(shared.iterdir()) == []
    assert list(tmp_path.iterdir()) == [shared]
    assert os.statvfs(shared).f_bfree == os.statvfs(shared).f_blocks


def test_no_room_anywhere_is_one_error_that_names_the_need_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(exchange, "SHARED_MEMORY", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk("64k")))
    message = (
        r"through 0.5 GiB of shared memory, for which there is no room \(.*/missing: No such file or directory; "
        r".*/small-disk: No space left on device\); free some space there, or set TMPDIR"
    )
    with pytest.raises(EngineError, match=message):
        WeightBucket([TensorPart("a", torch.float32, (2**26,), lambda: torch.empty(0))])


def _transferred_on_a_rank() -> bool:
    def gathered(weight: torch.Tensor) -> torch.Tensor:
        """A weight of which each rank has a share, the other half of the time."""
        shares = weight.clone() if dist.get_rank() == len(weight.shape) % 2 else torch.zeros_like(weight)
        dist.all_reduce(shares)
        return shares

    parts = [
        replace(part, read=partial(gathered, weight))
        for part, weight in zip(parts_of(WEIGHTS), WEIGHTS.values(), strict=True)
    ]
    bucket = WeightBucket(parts)
    halves = transferred(bucket, parts)
    bucket.close()
    return len(halves) == 3 and is_same({name: tensor for half in halves for name, tensor in half.items()})


@pytest.mark.system
def test_weights_sharded_over_ranks_are_whole_in_the_bucket_of_each() -> None:
    assert on_ranks(2, _transferred_on_a_rank) == [True, True]
