"""safetensors files that are written and read one tensor at a time."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from hacpo_core.engines.models.tensor_files import TensorFile, TensorPart, write_tensors
from hacpo_core.files import sha256_of

TENSORS = {
    "a.b": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,  # not contiguous
    "step": torch.tensor(3.0),
    "empty": torch.zeros(0, 4),
    "narrow": torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16),
    "wide": torch.tensor([1e300], dtype=torch.float64),
}


def part(name: str) -> TensorPart:
    tensor = TENSORS[name]
    return TensorPart(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def test_what_is_written_is_read_by_the_library_and_what_the_library_writes_is_read_here(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    assert write_tensors(ours, map(part, TENSORS)) == sha256_of(ours)
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, theirs)
    for found in (load_file(ours), TensorFile(ours), TensorFile(theirs)):
        assert set(found) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)


def test_file_without_tensors_is_one_too(tmp_path: Path) -> None:
    assert write_tensors(tmp_path / "none", []) == sha256_of(tmp_path / "none")
    assert load_file(tmp_path / "none") == {}
