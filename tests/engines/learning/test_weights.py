"""Digest and projections of weights."""

import math

import pytest
import torch

from hacpo_core.engines.learning import weights
from hacpo_core.engines.learning.weights import NUM_PROJECTIONS, fingerprint


def random_tensors(*, seed: int = 0, scale: float = 1.0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=random) for name, shape in (("a", (120, 64)), ("b", (7001,)))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_digest_changes_with_a_single_bit_with_a_name_and_with_a_shape(dtype: torch.dtype) -> None:
    tensors = {"a": torch.ones(3, 2, dtype=dtype), "b": torch.zeros(4, dtype=dtype)}
    before = fingerprint(tensors.items()).digest
    assert fingerprint(tensors.items()).digest == before
    flipped = tensors["a"].clone()
    flipped.view(torch.uint8)[2, 0] ^= 1
    others = [
        {**tensors, "a": flipped},
        {**tensors, "b": -tensors["b"]},  # -0 is another 0
        {**tensors, "a": tensors["a"].T.contiguous()},
        {"a": tensors["a"], "c": tensors["b"]},
    ]
    assert before not in {fingerprint(other.items()).digest for other in others}


def test_digest_sees_that_two_weights_changed_places() -> None:
    value_N = torch.arange(1.0, 1001.0)
    swapped_N = value_N.clone()
    swapped_N[[3, 700]] = swapped_N[[700, 3]]
    assert fingerprint([("a", value_N)]).digest != fingerprint([("a", swapped_N)]).digest


def test_digest_is_the_same_whatever_is_widened_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = random_tensors()
    before = fingerprint(tensors.items())
    monkeypatch.setattr(weights, "CHUNK", {"cpu": NUM_PROJECTIONS * 3})
    after = fingerprint(tensors.items())
    assert after.digest == before.digest
    assert after.projections == pytest.approx(before.projections, rel=1e-12, abs=1e-12)


def test_distance_of_projections_is_that_of_the_weights_within_their_spread() -> None:
    tensors = random_tensors()
    before = fingerprint(tensors.items())
    shares = []
    for seed in range(1, 41):
        change = random_tensors(seed=seed, scale=1e-3)
        after = fingerprint((name, tensor + change[name]) for name, tensor in tensors.items())
        length = math.sqrt(sum(float(value.square().sum()) for value in change.values()))
        shares.append(math.dist(before.projections, after.projections) / length)
    mean = sum(shares) / len(shares)
    assert mean == pytest.approx(1.0, abs=0.06)
    assert all(0.6 < share < 1.4 for share in shares)  # standard deviation 0.09


def test_change_of_a_single_column_is_not_lost_in_one_projection() -> None:
    width = NUM_PROJECTIONS * 2
    value = torch.zeros(400, width)
    changed = value.clone()
    changed[:, 5] = 1.0
    projections = fingerprint([("a", changed)]).projections
    assert sum(projection != 0 for projection in projections) == 1, "its rows are a multiple of the projections"
    aligned = torch.zeros(400, 128)
    aligned[:, 5] = 1.0
    assert sum(projection != 0 for projection in fingerprint([("a", aligned)]).projections) > 50
