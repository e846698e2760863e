"""What an update moves through host memory where the optimizer is offloaded: nothing that grows with its passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flows.planning.compose import compose
from hacpo_core.config import EngineConfig, OptimizerConfig
from tests.engines.deepspeed.test_grad_dtype import WIDE, rows
from tests.engines.small import minibatch, small_model

pytest.importorskip("deepspeed", reason="needs the deepspeed extra")
pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


class HostCopies(TorchDispatchMode):
    """Counts bytes that are copied into or out of tensors of host memory, known by their storages."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, Any] = {}
        self.num_bytes = 0

    def add(self, tensors: Iterator[torch.Tensor]) -> None:
        for tensor in tensors:
            self.storages[tensor.untyped_storage().data_ptr()] = tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and any(
            tensor.untyped_storage().data_ptr() in self.storages for tensor in args[:2]
        ):
            self.num_bytes += args[0].nbytes
        return func(*args, **(kwargs or {}))


def host_bytes_a_weight(engine: EngineConfig, *, num_passes: int) -> float:
    """Of one update's gradients, once AdamW's state is there."""
    import deepspeed

    from hacpo_core.engines.deepspeed.learner import DeepspeedLearner

    model = small_model(num_layers=2).to(torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:  # to get DeepSpeed's own engine
        made: list[Any] = []
        initialize = deepspeed.initialize
        patch.setattr(deepspeed, "initialize", lambda **words: made.append(initialize(**words)) or made[0])
        learner = DeepspeedLearner(model, optimizer=OptimizerConfig(), engine=engine, temperature=1.0, total_updates=4)
    batch = minibatch(rows()[:num_passes], WIDE)
    learner.update([batch], WIDE, measures_cosine=False)
    zero = made[0][0].optimizer
    copies = HostCopies()
    copies.add(iter(zero.accumulated_grads_in_cpu.values()))  # the gradients that lie in host memory
    copies.add(group.grad for group in zero.single_partition_of_fp32_groups)
    with copies:
        learner.update([batch], WIDE, measures_cosine=False)
    learner.close()
    return copies.num_bytes / sum(parameter.numel() for parameter in model.parameters())


def test_gradients_cross_to_the_host_once_an_update_with_one_gpu() -> None:
    hardware = compose("qwen3-1.7b-base+qwen3-4b-base", "hacpo", hardware="one_gpu").engine
    engine = replace(
        hardware, device="cpu", num_threads=1, gpu_memory_gb=None, micro_batch_tokens=1, gradient_checkpointing=True
    )
    few, many = (host_bytes_a_weight(engine, num_passes=number) for number in (4, 32))
    assert few == many == 4, "the fp32 gradient on its way to the optimizer"
    # Stage 2, with gradients summed in bfloat16, reads its sum from host memory and writes it back in every pass.
    stage_two = replace(engine, deepspeed=replace(engine.deepspeed, stage=2), grad_dtype="same")
    few, many = (host_bytes_a_weight(stage_two, num_passes=number) for number in (4, 32))
    assert (few, many) == (4 + 4 * 4, 4 + 4 * 32)
