"""Moving a learner's tensors out of a device's memory and back, bit for bit, while something else needs it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


def move_data(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Give tensors a storage on the device; whoever holds them (a module, an optimizer) keeps them, gradients go."""
    for tensor in tensors:
        tensor.grad = None
        tensor.data = tensor.data.to(device, copy=True)


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Give an optimizer's state a storage on the device."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = value.to(device, copy=True)


def release_unused(device: torch.device) -> None:
    """Return the allocator's free blocks to the device, so that other processes and engines can have them."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
