"""Moving a learner's tensors to host memory and back, bit for bit, while the device is used for something else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


def move_data(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move tensors to the device, keeping the tensor objects that modules and optimizers refer to; drop gradients."""
    for tensor in tensors:
        tensor.grad = None
        tensor.data = tensor.data.to(device, copy=True)


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move an optimizer's states to the device."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = value.to(device, copy=True)


def release_unused(device: torch.device) -> None:
    """Return the allocator's free blocks to the device, for other processes and engines."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
